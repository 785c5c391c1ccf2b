"""Wheels out of an overlay: the official wheel with it inside, and the overlay alone."""
