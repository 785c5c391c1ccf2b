"""Sockets of our own between members: the loop thread, the listener, the lanes and their frames."""
