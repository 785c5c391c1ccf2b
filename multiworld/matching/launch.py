"""What a backend does for an operation: it waits for its turn and for its memory, is started once, and ends.

All methods are called with the registry's lock held, unless they say otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from multiworld.matching.driver import Driver
from multiworld.matching.operation import Operation, Registry


class Launch:
    """One call of a driver, for one operation.

    Args:
        operation: what it is for.
        ranks: world ranks that take part.
        begin: starts it on the driver; returns the driver's work.
        over: what is to be done when the backend is done with the memory.
        value: of the operation, if it ends as soon as it is enqueued.
        streamed: whether it does.
        lent: whether the memory is the caller's, who then waits for the end, whatever happens.
        ready: whether its memory is there; those behind it wait, so that all members start in the same order.

    Attributes:
        operation: None once it is over; the operation knows the launch, and nothing is to be left in a circle.
        driver: what it was started on, if streams can wait for it.
        work: the driver's.
        turn: what to call when it becomes ready; set by whoever has it in a queue.
        followers: operations that wait for its end.
    """

    __slots__ = (
        "begin", "driver", "followers", "lent", "operation", "over", "ranks", "ready", "streamed", "turn", "value",
        "work",
    )  # fmt: skip

    def __init__(
        self,
        operation: Operation,
        ranks: tuple[int, ...],
        begin: Callable[[Driver], Any],
        over: Callable[[], None],
        *,
        value: Any = None,
        streamed: bool = False,
        lent: bool = True,
        ready: bool = True,
    ) -> None:
        self.operation: Operation | None = operation
        self.ranks, self.begin, self.over = ranks, begin, over
        self.value, self.streamed, self.lent, self.ready = value, streamed, lent, ready
        self.driver: Driver | None = None
        self.work: Any = None
        self.turn: Callable[[], None] | None = None
        self.followers: list[Synchronization] = []

    def set_ready(self) -> None:
        """Its memory is there."""
        self.ready = True
        if self.turn is not None:
            self.turn()

    def start(self, driver: Driver) -> Any:
        """Start it; returns the driver's work."""
        if self.operation is not None:
            self.operation.running = self.lent
        work = self.begin(driver)
        if driver.on_device:
            self.driver, self.work = driver, work
        return work

    def enqueued(self) -> None:
        """It is in the driver's stream: enough for a caller who goes on with that."""
        if self.streamed and self.operation is not None and not self.operation.withdrawn:
            self.operation.complete(self.value)

    def end(self) -> None:
        """It is over: tell who waits for that, and let go of all but what ``join`` needs."""
        self.operation = self.turn = None
        self.begin = self.over = _over
        for follower in self.followers:
            follower.ended(self)
        self.followers.clear()

    def join(self) -> None:
        """Let the calling thread's current stream wait for its end. Without the lock."""
        if self.driver is not None:
            self.driver.join(self.work)


def _over(*_: object) -> None:
    """Stands for what was done."""


class Carrier(Protocol):
    """Brings the payloads of messages to the device's driver."""

    def transfer(self, src: int, dst: int, launch: Launch) -> None:
        """Run a matched transfer between these world ranks, after those before it."""

    def aside(self, function: Callable[[], None]) -> None:
        """Run ``function`` soon in a thread of its own, without the lock."""


class Synchronization(Operation):
    """Waits for the end of all that the backend does for us now."""

    __slots__ = ("_missing",)

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry, "synchronize")
        self._missing: set[Launch] = set()

    def follow(self, launches: set[Launch]) -> None:
        """Wait for these."""
        self._missing = set(launches)
        for launch in launches:
            launch.followers.append(self)
        self._check()

    def ended(self, launch: Launch) -> None:
        """One of them has ended well."""
        self._missing.discard(launch)
        self._check()

    def awaits(self) -> tuple[int, ...]:
        """See ``Operation.awaits``."""
        us = self.registry.membership.rank
        return tuple({rank for launch in tuple(self._missing) for rank in launch.ranks if rank != us})

    def waiting_for(self) -> str:
        names = ", ".join(sorted({one.operation.name for one in tuple(self._missing) if one.operation is not None}))
        return f"{len(self._missing)} enqueued operations to end on the device ({names})"

    def _check(self) -> None:
        if not self._missing:
            self.complete()
