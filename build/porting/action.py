"""The steps of a port that may wait for a person. Imports nothing: the command's help loads it, and not the engine."""

from enum import Enum


class Action(Enum):
    """A step of a port."""

    START = "start"
    CONTINUE = "continue"
    DROP = "continue without the open hunks"
    ABORT = "abort"
