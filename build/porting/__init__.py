"""Port a patch series to another release or source tree."""

from enum import Enum


class Action(Enum):
    """A step of a port that may wait for a person; it is here since the command's help does not load the engine."""

    START = "start"
    CONTINUE = "continue"
    DROP = "continue without the open hunks"
    ABORT = "abort"
