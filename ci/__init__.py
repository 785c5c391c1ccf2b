"""What a CI system and a cluster's administrator call: matrix, artifacts, new releases, installation."""
