"""Programs for a CI system and a cluster's administrator: matrix, artifacts, new releases, installation."""
