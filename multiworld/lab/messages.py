"""The messages between a pool and its workers, as frozen data over one connection per worker."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

#: the mark of ``Context.send``
SAID = "said"


@dataclass(frozen=True, slots=True)
class Call:
    """Run ``function(context, *args)``: as a task if it is a coroutine function. With ``main``, the worker has no event
    loop, runs this function alone, and ends with it.
    """

    number: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    main: bool = False


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel the task of a call."""

    number: int


@dataclass(frozen=True, slots=True)
class Tell:
    """A value for ``Context.recv``."""

    value: Any


@dataclass(frozen=True, slots=True)
class Mark:
    """A worker has come to the place ``name``, at a monotonic time: the same clock in all processes of a machine."""

    name: str
    at: float
    value: Any = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a call; times are monotonic."""

    number: int
    started: float
    ended: float
    value: Any = None
    error: BaseException | None = None
    trace: str = ""

    @property
    def seconds(self) -> float:
        return self.ended - self.started


def packed(message: Any) -> bytes:
    """Pickle ``message``; what cannot be pickled in an outcome is replaced by its description."""
    try:
        data = pickle.dumps(message)
        if isinstance(message, Outcome):
            pickle.loads(data)  # noqa: S301 - our own: an error class that pickles but cannot be restored shows here
    except Exception as failure:
        if not isinstance(message, Outcome):
            raise
        text = f"not picklable ({failure!r}): value {message.value!r}, error {message.error!r}"
        data = pickle.dumps(replace(message, value=None, error=RuntimeError(text)))
    return data
