"""``WorldCommunicator``, where programs for pymultiworld 0.2.3 import it."""

from multiworld.compat.communicator import DEFAULT_WORLD_NAME as DEFAULT_WORLD_NAME
from multiworld.compat.communicator import BrokenWorldException as BrokenWorldException
from multiworld.compat.communicator import MismatchInWorld as MismatchInWorld
from multiworld.compat.communicator import WorldCommunicator as WorldCommunicator
