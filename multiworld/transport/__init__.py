"""Sockets between members: the reactor's thread, the listener, the greeting and the lanes."""
