"""Patch series as data: read, check, apply, export. Patches are bytes here, never text."""
