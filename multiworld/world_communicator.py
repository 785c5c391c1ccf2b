"""The earlier name of ``multiworld.communicator``."""

from multiworld.compat.communicator import BrokenWorldException as BrokenWorldException
from multiworld.compat.communicator import WorldCommunicator as WorldCommunicator
