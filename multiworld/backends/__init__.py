"""Backends of collectives and of device messages; their interface is ``matching.driver``."""
