"""Backends of collectives and of device messages; the interface of all is ``matching.driver``."""
