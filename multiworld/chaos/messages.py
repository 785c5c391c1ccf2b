"""What a conductor and its actors say to each other, as frozen data over one socket per actor."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """Run ``function(stage, *args)``; a coroutine function as a task, any other blocking the event loop."""

    number: int
    function: Callable[..., Any]
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel the task of a call."""

    number: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A sign that the actor has come to a certain place.

    Attributes:
        name: which place.
        at: monotonic time, the same clock in all processes of a machine.
        value: whatever belongs to it.
    """

    name: str
    at: float
    value: Any = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended.

    Attributes:
        number: of the call.
        started: monotonic time of its start.
        ended: monotonic time of its end.
        value: what it returned.
        error: what it raised.
    """

    number: int
    started: float
    ended: float
    value: Any = None
    error: BaseException | None = None

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.started


def packed(message: Any) -> bytes:
    """Pickle ``message``; what cannot be pickled in an outcome is replaced by its description."""
    try:
        data = pickle.dumps(message)
        pickle.loads(data)  # noqa: S301 - our own: an error class that pickles but cannot be restored shows here
    except Exception as failure:
        if not isinstance(message, Outcome):
            raise
        text = f"not picklable ({failure!r}): value {message.value!r}, error {message.error!r}"
        return pickle.dumps(Outcome(message.number, message.started, message.ended, error=RuntimeError(text)))
    return data
