"""Stores through which members meet: client and server of torch's TCP store, files, the caller's own."""
