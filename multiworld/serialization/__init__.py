"""Objects to bytes and back: only what the receiver allows is loaded, in bounded work."""
