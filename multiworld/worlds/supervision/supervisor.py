"""The supervisor: a table of wanted worlds, and the worlds as they are."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from functools import partial
from types import FrameType
from typing import Any

from multiworld.config import WorldConfig
from multiworld.errors import DescriptorsExhausted, InvalidArgument, WorldClosed
from multiworld.events import Draining, Event
from multiworld.process.event_loop import check_no_loop, running_loop
from multiworld.process.threads import blocking, wait_in_loop
from multiworld.rendezvous.join_arguments import Defaults
from multiworld.store.sources import parsed
from multiworld.transport.descriptors import limit
from multiworld.worlds.join_call import as_it_is, as_told, join
from multiworld.worlds.status import WorldStatus
from multiworld.worlds.supervision.keeper import Keeper
from multiworld.worlds.supervision.want import Backoff, Want
from multiworld.worlds.world import World
from multiworld.worlds.world_table import WorldTable

#: memberships that supervisors of this process keep: process, store, world, rank
_kept: set[tuple[int, str, str, int]] = set()
_guard = threading.Lock()


class Supervisor(AbstractContextManager["Supervisor"]):
    """Keeps the worlds of a table; made by ``MultiWorld.maintain``. It ends with ``close``, its block or its
    ``MultiWorld``; the worlds are left by the latter.

    Attributes:
        draining: True from ``drain`` on: finish what is under way, and end.
    """

    def __init__(
        self,
        owner: object,
        worlds: WorldTable[World],
        defaults: Defaults,
        table: Mapping[str, Want],
        backoff: Backoff | None,
    ) -> None:
        if backoff is not None and not isinstance(backoff, Backoff):
            raise InvalidArgument(what=f"backoff is {backoff!r}", remedy="pass a multiworld.Backoff")
        self._owner, self._worlds, self._defaults, self._backoff = owner, worlds, defaults, backoff or Backoff()
        self._pid = os.getpid()
        self._keepers: dict[str, Keeper] = {}
        self._tasks: dict[str, Future[None]] = {}
        self._changed = threading.Condition()
        self._closed = self.draining = False
        self._acting = threading.RLock()
        self._configs, self._table = self._checked(table), dict(table)
        self._loop = _loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mw-keep", daemon=True)
        self._thread.start()
        self._detach = worlds.resources.bus.attach(lambda _: self._tell())
        self._restore = _at_sigterm(self.drain)
        worlds.closers.append(self.close)
        try:
            for name in self._table:
                self._begin(name)
        except BaseException:
            self.close()
            raise

    @property
    def ready(self) -> bool:
        """True if every world of the table is active with all its members, and nothing drains."""
        return not self.draining and all(keeper.ready for keeper in tuple(self._keepers.values()))

    @blocking
    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait until every world is ready, at most ``timeout`` seconds; in an event loop call it in a thread.

        Returns:
            True when they are; False if the supervisor drains instead.

        Raises:
            GaveUp: a world is tried no more.
            RendezvousError: not in time; or a world is broken, and ``reconcile`` was not called since.
            WorldClosed: the supervisor was closed.
            WrongContext: it would block an event loop.
        """
        check_no_loop("wait_ready", of="sup")
        until = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not self.draining and (keeper := self._first_missing()) is not None:
                if keeper.given_up is not None:
                    raise keeper.given_up.with_context() from keeper.given_up.__cause__
                left = None if until is None else until - time.monotonic()
                if not keeper.assembling or (left is not None and left <= 0):
                    raise keeper.missing("it is not ready" + f" within {timeout} s" * keeper.assembling)
                self._changed.wait(left)
        return not self.draining

    def __getitem__(self, name: str) -> World:
        """The world of that name, which may be broken; raises what tells why it is not there.

        Raises:
            InvalidArgument: it is not in the table.
            GaveUp: it is tried no more.
            RendezvousError: it was not joined yet.
        """
        try:
            return self._keepers[name].usable()
        except (KeyError, TypeError):
            known = ", ".join(map(repr, self._keepers)) or "none"
            cause = f"in the table are: {known}"
            raise InvalidArgument(
                str(name), "no such world here", cause=cause, remedy="apply() a table with it"
            ) from None

    def events(self) -> AsyncIterator[Event]:
        """Iterate over the events of the worlds of the table, as ``MultiWorld.events`` does over all."""
        stream = self._worlds.resources.bus.stream(running_loop)
        return (event async for event in stream if not event.world or event.world in self._keepers)

    def status(self) -> dict[str, Any]:
        """Describe the worlds of the table, for JSON."""
        worlds = [asdict(self._status(keeper)) for keeper in tuple(self._keepers.values())]
        return {"ready": self.ready, "draining": self.draining, "worlds": worlds}

    def reconcile(self) -> tuple[str, ...]:
        """Let the worlds change, from here on: broken ones come back, and those of the last ``apply`` are as it says.

        Returns at once, and never blocks: safe in an event loop. A world that is whole is not touched.

        Returns:
            The names of the worlds that are not ready.

        Raises:
            WorldClosed, WrongContext: the supervisor or its ``MultiWorld`` was closed, or in a forked child.
        """
        with self._acting:
            self._check_usable("reconcile")
            changed = [name for name, keeper in self._keepers.items() if self._table.get(name) != keeper.want]
            for name in changed if not self.draining else ():
                self._replace(name)
            missing = {name: keeper for name, keeper in self._keepers.items() if not keeper.ready}
            for keeper in missing.values():
                keeper.permits += 1
                self._loop.call_soon_threadsafe(keeper.allowed.set)
            return tuple(missing)

    def apply(self, table: Mapping[str, Want]) -> None:
        """Want the worlds of another table. New ones, and those given up, begin at once; what is to change or to be
        left does so at the next ``reconcile``.

        Where only ``rank`` or ``size`` of a world differ, the world rejoins with them; otherwise it is left, and joined
        anew. A supervisor that drains checks the table, and changes nothing.

        Raises:
            InvalidArgument, BackendUnavailable: an entry cannot be right; then nothing is changed.
            WorldClosed, WrongContext: as of ``reconcile``.
        """
        with self._acting:
            self._check_usable("apply")
            configs = self._checked(table)
            if self.draining:
                return
            for name in configs.keys() - self._keepers.keys():
                self._check_free(name, configs[name], table[name])
            self._configs, self._table = configs, dict(table)
            for name in [name for name, keeper in self._keepers.items() if keeper.given_up is not None]:
                self._replace(name)
            for name in configs.keys() - self._keepers.keys():
                self._begin(name)

    def drain(self) -> bool:
        """Assemble nothing any more, and be not ready: the program finishes what is under way, and leaves the block.

        SIGTERM does this. From any thread, and from a signal handler.

        Returns:
            False if the supervisor was closed.
        """
        if not self.draining and not self._closed:
            self.draining = True
            self._loop.call_soon_threadsafe(self._drained)
        return not self._closed

    def close(self) -> None:
        """Stop keeping; what is being joined is given up, and joined worlds stay as they are."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._restore()
        self._detach()
        with self._acting:
            for name in self._keepers:
                self._release(name)
        if self.close in self._worlds.closers:
            self._worlds.closers.remove(self.close)
        asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        if threading.current_thread() is not self._thread:
            self._thread.join(5.0)
            self._loop.close()
        self._tell()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_usable(self, operation: str) -> None:
        if self._closed:
            raise WorldClosed(what="the supervisor was closed", remedy="call maintain() again", operation=operation)
        self._worlds.check_usable(None)

    def _checked(self, table: Mapping[str, Want]) -> dict[str, WorldConfig]:
        """All settings of the worlds of ``table``; raises ``InvalidArgument`` for what cannot be right."""
        if not isinstance(table, Mapping) or not all(isinstance(want, Want) for want in table.values()):
            remedy = "pass names and multiworld.Want, such as {'w': Want(rank=0, size=2, store=...)}"
            raise InvalidArgument(what=f"{table!r} is not a table of worlds", remedy=remedy, operation="maintain")
        return {name: want.config(name, self._defaults) for name, want in table.items()}

    def _begin(self, name: str, old: Keeper | None = None) -> None:
        """Begin to keep a world: a new one, or one whose entry has changed since ``old`` kept it."""
        config, want = self._configs[name], self._table[name]
        with _guard:
            if old is None:
                self._check_free(name, config, want)
            _kept.add(_key(config, want))
        stays = old is not None and _but_for_place(old.want) == _but_for_place(want)
        join = partial(self._joined, config, want)
        before = None if old is None or stays else old.leave
        keeper = Keeper(config, want, self._backoff, join, self._publish, self._tell, before)
        keeper.world = old.world if old is not None and stays else None
        self._keepers[name] = keeper
        self._worlds.wanted[name] = partial(self._status, keeper)
        self._tasks[name] = asyncio.run_coroutine_threadsafe(keeper.run(), self._loop)

    def _check_free(self, name: str, config: WorldConfig, want: Want) -> None:
        if name in self._worlds.wanted or _key(config, want) in _kept or name in self._worlds.worlds:
            what = "this world is kept, or was joined, in this process already"
            cause = "two supervisors of one world"
            remedy = "keep each world by one supervisor, and let it join the world"
            raise InvalidArgument(name, what, cause=cause, remedy=remedy, rank=config.rank, operation="maintain")

    def _replace(self, name: str) -> None:
        """Keep a world as the table says now, or leave it."""
        self._release(name)
        old = self._keepers.pop(name)
        if name in self._table:
            self._begin(name, old)
        else:
            asyncio.run_coroutine_threadsafe(old.leave(), self._loop)

    async def _joined(self, config: WorldConfig, want: Want) -> World:
        """Join a world; its operations are awaited in the loop of the program, not in ours."""
        ways = as_it_is(config) if want.on_loss == "shrink" else as_told(config, resize=False)
        return await join(self._owner, self._worlds, config, want.store, None, ways, wait_in_loop)

    def _status(self, keeper: Keeper) -> WorldStatus:
        status = keeper.status()
        return replace(status, ready=False) if self.draining else status

    def _release(self, name: str) -> None:
        """Keep a world no more."""
        keeper = self._keepers[name]
        self._tasks.pop(name).cancel()
        with _guard:
            _kept.discard(_key(keeper.config, keeper.want))
            self._worlds.wanted.pop(name, None)

    def _first_missing(self) -> Keeper | None:
        """The keeper of the world to wait for: first of those that are not only late; None if all are ready."""
        self._check_usable("wait_ready")
        missing = [keeper for keeper in tuple(self._keepers.values()) if not keeper.ready]
        hopeless = [keeper for keeper in missing if keeper.given_up is not None or not keeper.assembling]
        return next(iter(hopeless or missing), None)

    def _publish(self, event: Event) -> None:
        resources = self._worlds.resources
        resources.hub.call(lambda: resources.bus.publish(event))

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _drained(self) -> None:
        for task in tuple(self._tasks.values()):
            task.cancel()
        self._publish(Draining())
        self._tell()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self._loop.stop()


def _at_sigterm(drain: Callable[[], bool]) -> Callable[[], bool]:
    """Call ``drain`` at the first SIGTERM, as a cluster sends it before it kills a process, then the handler that was
    there. Only the main thread can set a handler: elsewhere nothing is done.

    Args:
        drain: returns whether there is something to drain; then the default, which ends the process, is left out.

    Returns:
        The function that puts the handler of before back; it tells whether it did.
    """
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before is None:  # None: it was not set in Python
        return lambda: False

    def handle(number: int, frame: FrameType | None) -> None:
        restored, drained = restore(), drain()  # a second one means what it meant before
        if callable(before):
            before(number, frame)
        elif restored and not drained:
            signal.raise_signal(number)

    def restore() -> bool:
        ours = signal.getsignal(signal.SIGTERM) is handle
        if ours and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
            return True
        return False

    signal.signal(signal.SIGTERM, handle)
    return restore


def _loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.new_event_loop()
    except OSError as error:
        raise DescriptorsExhausted(what=f"a supervisor cannot be made: {error}", limit=limit(), need=3) from error


def _but_for_place(want: Want) -> Want:
    """What is wanted of a world, but for what it may be assembled again with; one that shrinks is joined anew."""
    return want if want.on_loss == "shrink" else replace(want, rank=None, size=None, min_size=None)


def _key(config: WorldConfig, want: Want) -> tuple[int, str, str, int]:
    where = parsed(want.store)
    known = str(where) if not hasattr(where, "compare_set") else f"object {id(where)}"
    return os.getpid(), known, config.name, config.rank
