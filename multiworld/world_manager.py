"""The earlier name of ``multiworld.manager``."""

from multiworld.compat.manager import WorldManager as WorldManager
