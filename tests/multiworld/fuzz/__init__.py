"""Fuzzers of the wire: frames of a member gone mad, bytes of a stranger."""
