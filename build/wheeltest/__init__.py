"""Test what was built, the way a user gets it: installed into fresh environments outside the source tree."""
