"""The keeper of one world: joins it, and assembles it again when that is allowed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from multiworld.config import WorldConfig
from multiworld.errors import (
    BackendUnavailable,
    DeviceFailed,
    GaveUp,
    MultiWorldError,
    RendezvousError,
    TooFewMembers,
    WrongContext,
)
from multiworld.events import AttemptFailed, Event, WorldGivenUp
from multiworld.process.threads import run_in_thread, wait_in_loop
from multiworld.worlds.rejoining import Change, RejoinCall
from multiworld.worlds.status import WorldStatus, is_ready, world_status
from multiworld.worlds.supervision.want import Backoff, Want
from multiworld.worlds.world import World

#: what another attempt cannot change
LASTING: Final = BackendUnavailable, DeviceFailed, WrongContext


class Keeper:
    """One world that is kept, in the event loop of its supervisor.

    Args:
        join: joins the world.
        before: what has to be over before that.
        publish: publishes an event.
        changed: called after each change of what others may wait for.

    Attributes:
        world: the world, once it was joined; the object survives its generations.
        permits: how often it was allowed to be assembled; ``reconcile`` counts on.
        allowed: set, in the loop, where ``permits`` has changed.
        given_up: why nothing is tried any more.
    """

    def __init__(
        self,
        config: WorldConfig,
        want: Want,
        backoff: Backoff,
        join: Callable[[], Awaitable[World]],
        publish: Callable[[Event], None],
        changed: Callable[[], None],
        before: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.config, self.want = config, want
        self.world: World | None = None
        self.permits, self._served = 1, 0
        self.given_up: GaveUp | None = None
        self._backoff, self._join, self._publish, self._changed = backoff, join, publish, changed
        self._before = before
        self._failure: MultiWorldError | None = None
        self._failed: deque[float] = deque(maxlen=backoff.failures)
        self.allowed = asyncio.Event()

    @property
    def assembling(self) -> bool:
        """Tell whether it may be assembled; not once it is whole, until the next permit."""
        return self.permits > self._served

    @property
    def ready(self) -> bool:
        """Tell whether the world is active with all its members, as far as is known."""
        return self.world is not None and is_ready(self.world)

    async def run(self) -> None:
        """Keep the world until that is cancelled, or it has to be given up."""
        if self._before is not None:
            await self._before()
        attempt = 0
        while self.given_up is None:
            permit = self.permits  # one that comes meanwhile is for a later break
            try:
                await self._assemble()
            except Exception as error:  # noqa: BLE001 - else nobody would see it
                pause = self._backoff.pause(attempt)
                attempt += 1
                if self._count(error, pause):
                    await asyncio.sleep(pause)
            else:
                attempt, self._failure, self._served = 0, None, permit
                self._changed()
                await self._broken_and_allowed()

    async def leave(self) -> None:
        """Leave the world in good order, if it was joined."""
        if self.world is not None:
            await run_in_thread(f"mw-leave-{self.config.name}", self.world.member.leave)

    def usable(self) -> World:
        """Return the world.

        Raises:
            GaveUp: it is tried no more.
            RendezvousError: it was not joined yet.
        """
        if self.given_up is not None:
            raise self.given_up.with_context() from self.given_up.__cause__
        if self.world is None:
            raise self.missing("it was not joined yet")
        return self.world

    def missing(self, what: str) -> RendezvousError:
        """Make the error for a world that is not ready."""
        failure = self._failure or (None if self.world is None else self.world.failure)
        if self.world is not None and not self.assembling:
            what, remedy = f"{what}: it is broken, or members have left", "call reconcile(), which brings it back"
        else:
            remedy = "wait_ready() waits for it, events() and status() tell why it is not there"
        cause = "its members have not met yet" if failure is None else failure.what
        return RendezvousError(self.config.name, what, cause=cause, remedy=remedy, rank=self.config.rank)

    def status(self) -> WorldStatus:
        """Describe the world, joined or not."""
        if self.world is not None and self.given_up is None:
            return world_status(self.world)
        failure = self.given_up or self._failure
        text = "" if failure is None else f"{type(failure).__name__}: {failure.what}"
        state = "joining" if self.given_up is None else "given up"
        return WorldStatus(self.config.name, self.config.rank, self.config.size, 0, state, text)

    async def _assemble(self) -> None:
        """Join the world, or go on with it under the next generation; operations stay in the loop of the program."""
        if self.world is None:
            self.world = await self._join()
            return
        if self.want.on_loss == "shrink":
            with contextlib.suppress(TooFewMembers):
                await self._go_on(self.world, None, None, Change(self.want.min_size or 1))
                return
        await self._go_on(self.world, self.config.rank, self.config.size, None)

    async def _go_on(self, world: World, rank: int | None, size: int | None, change: Change | None) -> None:
        if change is not None:
            world._check_resizable(change.operation)
        call = RejoinCall(world._rejoins, rank, size, self.config.join_timeout, world.member.loop, change)
        await call.see_through(wait_in_loop)

    async def _broken_and_allowed(self) -> None:
        while not self.assembling:
            self.allowed.clear()
            await self.allowed.wait()
        failure = None if self.world is None else self.world.failure
        if failure is not None:
            self._count(failure, 0.0)

    def _count(self, error: Exception, pause: float) -> bool:
        """Note a failure; whether to go on, ``pause`` seconds from now."""
        now, backoff = time.monotonic(), self._backoff
        self._failed.append(now)
        often = len(self._failed) == backoff.failures and now - self._failed[0] <= backoff.within
        place: Any = {"world": self.config.name, "rank": self.config.rank}
        generation = 0 if self.world is None else self.world.generation
        if not isinstance(error, MultiWorldError) or isinstance(error, LASTING) or often:
            count = f"{len(self._failed)} failures in {now - self._failed[0]:.1f} s" if often else "it cannot work here"
            text = error.what if isinstance(error, MultiWorldError) else f"{type(error).__name__}: {error}"
            self.given_up = GaveUp(what=f"given up, {count}", cause=text, failures=len(self._failed), **place)
            self.given_up.__cause__ = error
            self._publish(WorldGivenUp(generation=generation, failure=self.given_up, **place))
        else:
            self._failure = error
            if pause:
                self._publish(AttemptFailed(generation=generation, failure=error, after=pause, **place))
        self._changed()
        return self.given_up is None
