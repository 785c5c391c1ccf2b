"""``WorldManager``, where programs for pymultiworld 0.2.3 import it."""

from multiworld.compat.manager import WorldManager as WorldManager
