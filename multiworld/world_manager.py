"""The earlier name of ``multiworld.manager``."""

from multiworld.manager import WorldManager

__all__ = ["WorldManager"]
