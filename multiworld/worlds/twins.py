"""Synchronous twins of awaitable methods: the same coroutine, whose every wait blocks the calling thread instead."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Concatenate, ParamSpec, TypeVar

from multiworld.errors import MultiWorldError
from multiworld.operations.call import SyncCall
from multiworld.process.threads import blocking, wait_here

P = ParamSpec("P")
T = TypeVar("T")


def twin(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Make the synchronous twin of ``method``, for a class whose own methods wait in the calling thread."""

    @blocking
    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            method(self, *args, **kwargs).send(None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        except MultiWorldError as error:
            raise error.without_frames() from error.__cause__  # the caller's line says where
        raise AssertionError(f"the synchronous twin of {method.__qualname__} awaited something")

    return call


class WaitingCall(SyncCall):
    """A ``SyncCall`` in the place of a ``Call``."""

    __slots__ = ()

    async def done(self, operation: Any) -> Any:
        """Wait in this thread for the operation, and return its result."""
        return super().done(operation)


async def waited_here(future: Future[Any], seconds: float | None) -> None:
    """Wait in this thread, in the place of ``wait_in_loop``."""
    wait_here(future, seconds)
