"""Rejoins of one world: one failure leads to one new generation, however many callers notice it.

The sender and the receiver of a world both get the exception, and a callback hears of it, too. Each of them may call
``rejoin()``. The first call begins an attempt, and calls meanwhile wait for the same one. Later calls find a world that
is whole again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from multiworld.config import whole_number
from multiworld.errors import InvalidArgument, MultiWorldError, RendezvousError, told_of
from multiworld.events import TELLING_SECONDS
from multiworld.rendezvous.join_arguments import check_seconds, checked_place
from multiworld.rendezvous.joining import STORE_GRACE_SECONDS
from multiworld.session.session import LINGER_SECONDS

if TYPE_CHECKING:
    from multiworld.config import WorldConfig
    from multiworld.process.join_threads import JoinJob
    from multiworld.rendezvous.ledger import Claim
    from multiworld.session.member import Member
    from multiworld.worlds.world_table import Resources

#: an attempt whose limit is this much later than that of a caller ends by itself, with a better message
GRACE_SECONDS = 1.0
#: an attempt that ends this much later than it should waits for a store that hangs: before that, the world may have
#: been left in good order
SILENT_SECONDS = LINGER_SECONDS + STORE_GRACE_SECONDS


class Attempt:
    """One attempt to bring a world back, for all who wait for it; given up when the last has stopped. ``call`` is the
    one that began it; ``until`` is when it has ended, unless its store hangs.
    """

    def __init__(self, call: RejoinCall, config: WorldConfig, job: JoinJob[None]) -> None:
        self.call, self.config = call, config
        self.job = job
        self.until = job.since + config.join_timeout
        self.waiting = 0


class Rejoins:
    """The calls of ``rejoin`` of one world, of any thread.

    Args:
        begin: lets the world go on under a new generation, as the configuration and the change say.
    """

    def __init__(
        self,
        member: Member,
        resources: Resources,
        begin: Callable[[WorldConfig, asyncio.AbstractEventLoop | None, Change | None], JoinJob[None]],
    ) -> None:
        self.member, self.resources, self._begin = member, resources, begin
        self._lock = threading.Lock()
        self._attempt: Attempt | None = None

    @contextlib.contextmanager
    def attempt(self, call: RejoinCall) -> Iterator[Attempt | None]:
        """Take part in the attempt that is under way, or in a new one; None where the world has all its members."""
        with self._lock:
            attempt = self._attempt
            if attempt is None or attempt.job.done.done():
                attempt = self._attempt = self._begun(call)
            elif not call.agrees_with(attempt):
                raise call.conflict(attempt)
            if attempt is not None:
                attempt.waiting += 1
        try:
            yield attempt
        finally:
            if attempt is not None:
                self._stop_waiting(attempt)

    def _begun(self, call: RejoinCall) -> Attempt | None:
        config = call.config()
        if call.keeps(self.member.config) and self.member.is_whole():
            return None
        return Attempt(call, config, self._begin(config, call.loop, call.change))

    def _stop_waiting(self, attempt: Attempt) -> None:
        with self._lock:
            attempt.waiting -= 1
            if not attempt.waiting:
                attempt.job.cancel()


@dataclass(frozen=True, slots=True)
class Change:
    """The change of a ``shrink`` or ``grow``: it goes on with ``guests``, and with ``min_size`` members at least."""

    min_size: int = 1
    guests: tuple[Claim, ...] = ()

    @property
    def operation(self) -> str:
        """The method that wants it."""
        return "grow" if self.guests else "shrink"


class RejoinCall:
    """One call of ``rejoin``, or of another method that ``change`` is of; arguments as there.

    Args:
        loop: the event loop that drives the world afterwards, if any.
    """

    def __init__(
        self,
        rejoins: Rejoins,
        rank: int | None,
        size: int | None,
        timeout: float | None,
        loop: asyncio.AbstractEventLoop | None,
        change: Change | None = None,
    ) -> None:
        self.change, self._name = change, change.operation if change else "rejoin"
        self._rejoins, self._member, self._resources = rejoins, rejoins.member, rejoins.resources
        self._rank, self._size, self._timeout = rank, size, timeout
        self.loop = loop
        self._seconds = self.config().join_timeout
        self._until = time.monotonic() + self._seconds

    async def see_through(self, wait: Callable[[Future[Any], float], Awaitable[None]]) -> None:
        """Wait, with ``wait``, until the world is back and the callbacks have been told; raises as ``World.rejoin``."""
        over = False
        while not over:
            with self._rejoins.attempt(self) as attempt:
                if attempt is not None:
                    await wait(attempt.job.done, self.patience(attempt))
                over = attempt is None or self.is_over(attempt)
        await wait(self._resources.callbacks.told(), TELLING_SECONDS)

    def config(self) -> WorldConfig:
        """Check what to rejoin with, before the world is left, or a rejoin of the parent process waited for.

        Raises:
            InvalidArgument: it cannot be right.
        """
        self._member.check_process()
        was = self._member.config
        rank, size = was.rank if self._rank is None else self._rank, was.size if self._size is None else self._size
        timeout = was.join_timeout if self._timeout is None else self._timeout
        with told_of(was.name, whole_number(rank), self._name, self._member.generation):
            rank, size = checked_place(rank, size)
            check_seconds("join_timeout", timeout)
        same = (rank, size, timeout) == (was.rank, was.size, was.join_timeout)
        return was if same else replace(was, rank=rank, size=size, join_timeout=timeout)

    def keeps(self, config: WorldConfig) -> bool:
        """Tell whether ``config`` has all that was asked for."""
        guests = self.change is not None and bool(self.change.guests)
        return self._rank in (None, config.rank) and self._size in (None, config.size) and not guests

    def agrees_with(self, attempt: Attempt) -> bool:
        """Tell whether ``attempt`` does what was asked for."""
        same = self.change == attempt.call.change
        return same and self._rank in (None, attempt.config.rank) and self._size in (None, attempt.config.size)

    def conflict(self, attempt: Attempt) -> InvalidArgument:
        """Make the error for a call that wants another change than the attempt that is under way."""
        config, change = attempt.config, attempt.call.change
        asked = f"rank {self._rank}, size {self._size}".replace("None", "as it is")
        what = f"rejoin is under way here with rank {config.rank}, size {config.size}, not with {asked}"
        remedy = "let one of them call rejoin(rank=..., size=...), and the others rejoin()"
        if change != self.change:
            what = f"{attempt.call._name} is under way here, with {change or 'all members'}, and not this {self._name}"
            remedy = "let all callers of a process call the same method"
        cause = "two callers of this process want different changes of the world"
        return InvalidArgument(config.name, what, cause=cause, remedy=remedy, rank=config.rank, operation=self._name)

    def patience(self, attempt: Attempt) -> float:
        """Seconds to wait for ``attempt``, which mostly ends by itself before that."""
        ours = self._until if attempt.until > self._until + GRACE_SECONDS else attempt.until + SILENT_SECONDS
        return max(0.0, ours - time.monotonic())

    def is_over(self, attempt: Attempt) -> bool:
        """Tell whether the world is back; False to try again, since an attempt with a shorter limit than ours failed.

        Raises:
            MultiWorldError: that of the attempt, or ``RendezvousError`` when our own time is over.
        """
        if not attempt.job.done.done():
            with told_of(attempt.config.name, attempt.config.rank, self._name, self._member.generation):
                if attempt.until <= self._until + GRACE_SECONDS:
                    raise self._resources.store_silent(self._member.source.where, attempt.job)
                what = f"not assembled within {self._seconds} s"
                cause = "a member did not start, or joined under another name, size or store"
                raise RendezvousError(what=what, cause=cause)
        error = attempt.job.done.exception()
        had_less_time = attempt.until < self._until and self._until - time.monotonic() > min(
            GRACE_SECONDS, self._seconds / 4
        )
        if isinstance(error, RendezvousError) and had_less_time:
            return False
        if isinstance(error, MultiWorldError):
            raise error.with_context() from error.__cause__  # a copy: several threads may raise it
        if error is not None:
            raise error
        return True
