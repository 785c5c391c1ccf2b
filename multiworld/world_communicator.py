"""The earlier name of ``multiworld.communicator``."""

from multiworld.communicator import BrokenWorldException, WorldCommunicator

__all__ = ["BrokenWorldException", "WorldCommunicator"]
