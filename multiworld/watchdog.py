"""``WatchDog``, where programs for pymultiworld 0.2.3 import it."""

from multiworld.compat.watchdog import WatchDog as WatchDog
