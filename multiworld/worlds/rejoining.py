"""Rejoins of one world: one failure leads to one new generation, however many callers notice it.

The sender and the receiver of a world both get the exception, and a callback hears of it, too. Each of them may call
``rejoin()``: the first call begins an attempt, those that come meanwhile wait for the same one, and those that come
later find a world that is whole again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from multiworld.errors import InvalidArgument, MultiWorldError, RendezvousError
from multiworld.rendezvous.joining import STORE_GRACE_SECONDS
from multiworld.session.orderly_leave import LINGER_SECONDS

if TYPE_CHECKING:
    from multiworld.config import WorldConfig
    from multiworld.process.join_threads import JoinJob

#: an attempt whose limit is this much later than that of a caller ends by itself, with a better message
GRACE_SECONDS = 1.0
#: an attempt that ends this much later than it should waits for a store that hangs: before it met anybody, the world
#: may have been left in good order
SILENT_SECONDS = LINGER_SECONDS + STORE_GRACE_SECONDS


class RejoinWorld(Protocol):
    """The world that rejoins."""

    @property
    def config(self) -> WorldConfig: ...
    @property
    def generation(self) -> int: ...
    def _whole(self) -> bool:
        """Whether it is active with all its members."""

    def _config_of_rejoin(self, rank: int | None, size: int | None, timeout: float | None) -> WorldConfig:
        """What to rejoin with; raises ``InvalidArgument`` for what cannot be right."""

    def _begin_rejoin(self, config: WorldConfig, loop: asyncio.AbstractEventLoop | None) -> JoinJob[None]:
        """Begin to go on under a new generation."""

    def _store_silent(self, config: WorldConfig, job: JoinJob[None]) -> RendezvousError:
        """The error for a store that does not answer."""


class Attempt:
    """One attempt to bring a world back, for all who wait for it; given up when nobody waits any more.

    Attributes:
        config: what the world is to be rejoined with.
        job: the attempt itself.
        until: monotonic time by which it has ended, unless its store hangs.
        waiting: number of callers that wait.
    """

    def __init__(self, config: WorldConfig, job: JoinJob[None]) -> None:
        self.config = config
        self.job = job
        self.until = job.since + config.join_timeout
        self.waiting = 0


class Rejoins:
    """The calls of ``rejoin`` of one world, of any thread."""

    def __init__(self, world: RejoinWorld) -> None:
        self._world = world
        self._lock = threading.Lock()
        self._attempt: Attempt | None = None

    @contextlib.contextmanager
    def attempt(self, call: RejoinCall) -> Iterator[Attempt | None]:
        """Take part in the attempt that is under way, or in a new one; None where the world has all its members."""
        with self._lock:
            attempt = self._attempt
            if attempt is None or attempt.job.done.done():
                attempt = self._attempt = self._begun(call)
            elif not call.agrees_with(attempt.config):
                raise call.conflict(attempt.config)
            if attempt is not None:
                attempt.waiting += 1
        try:
            yield attempt
        finally:
            if attempt is not None:
                self._stop_waiting(attempt)

    def _begun(self, call: RejoinCall) -> Attempt | None:
        world, config = self._world, call.config()
        if call.agrees_with(world.config) and world._whole():
            return None
        return Attempt(config, world._begin_rejoin(config, call.loop))

    def _stop_waiting(self, attempt: Attempt) -> None:
        with self._lock:
            attempt.waiting -= 1
            if not attempt.waiting:
                attempt.job.cancel()


class RejoinCall:
    """One call of ``rejoin``; arguments as there.

    Args:
        loop: the event loop that drives the world afterwards, if any.
    """

    def __init__(
        self,
        world: RejoinWorld,
        rank: int | None,
        size: int | None,
        timeout: float | None,
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self._world, self._rank, self._size, self._timeout = world, rank, size, timeout
        self.loop = loop
        self._seconds = self.config().join_timeout
        self._until = time.monotonic() + self._seconds

    def config(self) -> WorldConfig:
        """What to rejoin with; raises ``InvalidArgument`` for what cannot be right."""
        return self._world._config_of_rejoin(self._rank, self._size, self._timeout)

    def agrees_with(self, config: WorldConfig) -> bool:
        """Whether ``config`` has the rank and the size that were asked for, if any were."""
        return self._rank in (None, config.rank) and self._size in (None, config.size)

    def conflict(self, config: WorldConfig) -> InvalidArgument:
        """The error for a call that wants another rank or size than the attempt that is under way."""
        asked = f"rank {self._rank}, size {self._size}".replace("None", "as it is")
        return InvalidArgument(
            config.name, f"rejoin is under way here with rank {config.rank}, size {config.size}, not with {asked}",
            cause="two callers of this process want different changes of the world",
            remedy="let one of them call rejoin(rank=..., size=...), and the others rejoin()",
            rank=config.rank, operation="rejoin",
        )  # fmt: skip

    def patience(self, attempt: Attempt) -> float:
        """Seconds to wait for ``attempt``, which mostly ends by itself before that."""
        ours = self._until if attempt.until > self._until + GRACE_SECONDS else attempt.until + SILENT_SECONDS
        return max(0.0, ours - time.monotonic())

    def is_over(self, attempt: Attempt) -> bool:
        """Whether the world is back; False to try again, since an attempt with a shorter limit than ours failed.

        Raises:
            MultiWorldError: that of the attempt, or ``RendezvousError`` when our own time is over.
        """
        if not attempt.job.done.done():
            if attempt.until <= self._until + GRACE_SECONDS:
                raise self._world._store_silent(attempt.config, attempt.job)
            raise RendezvousError(
                attempt.config.name, f"not assembled within {self._seconds} s",
                cause="a member did not start, or joined under another name, size or store",
                generation=self._world.generation, rank=attempt.config.rank, operation="rejoin",
            )  # fmt: skip
        error = attempt.job.done.exception()
        had_less_time = attempt.until < self._until and self._left > min(GRACE_SECONDS, self._seconds / 4)
        if isinstance(error, RendezvousError) and had_less_time:
            return False
        if isinstance(error, MultiWorldError):
            raise error.with_context() from error.__cause__  # a copy: several threads may raise it
        if error is not None:
            raise error
        return True

    @property
    def _left(self) -> float:
        return max(0.0, self._until - time.monotonic())
