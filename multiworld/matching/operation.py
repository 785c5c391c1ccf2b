"""Operations under way: each from its start to its outcome, and the registry of all of one world generation.

Nothing here does I/O or reads a clock of its own. All methods are called with the registry's lock held, unless they say
otherwise.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

import torch

from multiworld.errors import BrokenWorldException, LossReason, MultiWorldError
from multiworld.matching.device import Device
from multiworld.matching.driver import Driver
from multiworld.matching.histogram import operation_histograms
from multiworld.matching.membership import Membership

logger = logging.getLogger(__name__)


class Host(Protocol):
    """The host of the engine: a session. All with the lock held, unless they say otherwise."""

    def lost(self, peer: int, how: LossReason, what: str) -> None:
        """End the generation because of ``peer``; if it left, once what can finish has."""

    def set_alarm(self) -> None:
        """Call ``overdue`` when ``next_look`` is reached. From any thread."""

    def aside(self, function: Callable[[], None]) -> None:
        """Run ``function`` soon in a thread of its own, without the lock."""

    def launch(self, number: int, launch: Launch) -> None:
        """Run an agreed collective, or a matched transfer, after those before it of that group or channel."""

    def adopt(self, number: int, launch: Launch) -> None:
        """Hear the end of a transfer that compiled code has handed to the driver of that channel."""

    def taken_in(self, number: int) -> None:
        """Let the caller of what had no operation see that it has one."""

    def abort(self, reason: str) -> None:
        """End the generation here and for all members."""

    def interrupted(self, what: str) -> None:
        """End the generation: a signal handler raised where nothing can be resumed."""


class Registry:
    """The operations of one generation.

    Args:
        device: where the backend takes tensors; None if it takes them on the CPU only.

    Attributes:
        host: what it works for.
        membership: for errors and limits.
        lock: guards all of it; held for short, never while waiting.
        clock: monotonic seconds.
        operations: what is under way.
        counts: operations started, by name.
        latencies: of those that succeeded, by name.
        departed: ranks that left in good order, all their data read.
        gave_up: those of them that gave their collectives up.
        failure: the first cause, once the generation is broken or closed; nothing begins after it.
        next_look: when the deadlines are looked at next; infinite if they need not be.
        under_way: what is matched or agreed, and not over on the backend yet.
    """

    def __init__(
        self,
        membership: Membership,
        host: Host,
        lock: AbstractContextManager[Any],
        clock: Callable[[], float],
        device: Device | None = None,
    ) -> None:
        self.membership, self.lock, self.clock, self.device = membership, lock, clock, device
        self.under_way: set[Launch] = set()
        self.op_timeout = membership.op_timeout
        self.operations: set[Operation] = set()
        self.counts: Counter[str] = Counter()
        self.latencies = operation_histograms()
        self.departed: frozenset[int] = frozenset()
        self.gave_up: set[int] = set()
        self.failure: BrokenWorldException | None = None
        self.next_look = math.inf
        self.host = host

    def register(self, operation: Operation, peers: tuple[int, ...]) -> bool:
        """Take ``operation`` in, unless the generation has ended or one of ``peers`` has left."""
        gone = self.departed.intersection(peers) if self.departed else ()
        if gone:
            self.host.lost(min(gone), LossReason.LEFT, f"rank {min(gone)} left the world")
        if self.failure is not None:
            operation.fail(self.failure)
            return False
        self.operations.add(operation)
        self.counts[operation.name] += 1
        return True

    def fail_all(self, error: BrokenWorldException, *, running: bool) -> None:
        """Fail every operation; those that the backend works on only with ``running``."""
        for operation in tuple(self.operations):
            if running or not operation.running:
                operation.fail(error)

    def succeeded(self, operation: Operation) -> None:
        """Count how long the caller of ``operation`` waited: not at all, if it was done before the wait began."""
        if operation in self.operations:
            self.latencies[operation.name].observe(max(0.0, self.clock() - operation.waited_since()))

    def protocol_error(self, peer: int, what: str) -> None:
        """A peer sent what no peer of ours can send."""
        self.host.lost(peer, LossReason.PROTOCOL, f"rank {peer} sent what cannot be right: {what}")

    def mishandled(self, peer: int, error: Exception) -> None:
        """End the generation, so that no wait goes on: what ``peer`` sent could not be handled. In its handler."""
        if isinstance(error, MemoryError):
            self.protocol_error(peer, f"a message for which there is no memory: {error}")
            return
        logger.exception("world %r: handling what rank %d sent failed", self.membership.name, peer)
        self.protocol_error(peer, f"{type(error).__name__}: {error}")

    def look_at(self, deadline: float) -> None:
        """Look at the deadlines when it is ``deadline``, or sooner. From any thread, without the lock."""
        with self.lock:
            if deadline >= self.next_look or self.failure is not None:
                return
            self.next_look = deadline
        self.host.set_alarm()

    def overdue(self, now: float) -> Operation | None:
        """The operation whose deadline has passed; None if there is none, and ``next_look`` says when to ask again."""
        # Before the deadlines are read: one that is set from now on finds that no look is due.
        self.next_look = math.inf
        first = min(self.operations, key=lambda operation: operation.deadline, default=None)
        if first is None or self.failure is not None:
            return None
        if first.deadline <= now:
            return first
        self.next_look = min(self.next_look, first.deadline)
        return None

    def awaited(self, before: float) -> set[int]:
        """World ranks that an operation has waited for since ``before``, or longer. Without the lock."""
        pending = tuple(self.operations)
        return {peer for op in pending if not op.withdrawn and op.waited_since() <= before for peer in op.awaits()}

    # the backend's work

    def launches(self) -> set[Launch]:
        """What is matched or agreed, and not over on the backend yet."""
        return self.under_way

    def synchronize(self) -> Operation:
        """Start to wait for the end of all that the backend does for us now. Without the lock."""
        operation = Synchronization(self)
        with self.lock:
            if self.register(operation, ()):
                operation.follow(self.launches())
        return operation

    def is_over(self, launch: Launch) -> None:
        """The backend is done with it, and what was to be done then is done."""
        self.under_way.discard(launch)
        launch.end()

    def awaited_work(self) -> bool:
        """Return whether a caller waits for what the backend does now."""
        return any(launch.operation is not None and not launch.operation.done for launch in self.launches())

    def finishing(self) -> bool:
        """Return whether a caller waits for what will end: the backend is at it, and all who take part in it see it
        through, or a member that left has done so, and the parts of the others are on their way."""
        awaited = (launch for launch in self.launches() if launch.operation is not None and not launch.operation.done)
        if any(self.gave_up.isdisjoint(launch.ranks) for launch in awaited):
            return True
        left = self.departed - self.gave_up
        return any(operation.ended_with(left) for operation in self.operations)

    def goes_on_without(self, peer: int, *, gives_up: bool) -> bool:
        """Note that ``peer`` left in good order; whether what the backend does can still end.

        A collective in which it took part can, unless it ``gives_up`` its own: the backend may never say so.
        """
        self.departed |= {peer}
        self.gave_up |= {peer} if gives_up else set()
        return not (gives_up and any(peer in launch.ranks for launch in self.launches()))


class Operation:
    """An operation from its start to its outcome. Completed at most once.

    Attributes:
        name: of the operation, for messages.
        registry: that it is in.
        done: whether the outcome is there.
        since: time since which somebody waits for it; infinite until then.
        deadline: time after which the world breaks; infinite until somebody waits.
        withdrawn: its caller waits no more.
        running: the backend works on the caller's memory, and cannot be told to use another.
        keep: what must stay alive until it is done, such as tensors.
        finish: makes the result of the value, in the thread that asked.
        launch: what the backend does for it; None for what travels on the lanes.
        parent: the batch that it belongs to.
        in_step: whether all members must go on from it together: one that gave it up alone is out of step.
    """

    in_step: ClassVar[bool] = False

    def __init__(self, registry: Registry, name: str, keep: Any = None) -> None:
        self.registry = registry
        self.name = name
        self.done = False
        self.withdrawn = False
        self.running = False
        self.since = self.deadline = math.inf
        self.timeout = 0.0
        self.keep = keep
        self.finish: Callable[[Any], Any] | None = None
        self.launch: Launch | None = None
        self.parent: BatchOperation | None = None
        self._value: Any = None
        self._error: MultiWorldError | None = None
        self._wake: Callable[[], None] | None = None

    def complete(self, value: Any = None) -> None:
        """Record success and wake the waiter."""
        if not self.done:
            self._value = value
            if not self.withdrawn:
                self.registry.succeeded(self)
            self._settle()

    def fail(self, error: MultiWorldError) -> None:
        """Record the failure, give the caller's memory back and wake the waiter."""
        if not self.done:
            self._error = error
            self.give_back()
            self._settle()

    @property
    def succeeded(self) -> bool:
        """True once it is done, and well."""
        return self.done and self._error is None

    def result(self) -> Any:
        """The value of a done operation; raises its error, with this operation's name in it. Without the lock.

        Asked for once: what makes it mostly refers to the operation, and is let go of, so that nothing is left in a
        circle. The caller's memory would be in it, and be free only when the garbage collector comes.
        """
        finish, self.finish = self.finish, None
        if self._error is not None:
            raise self._error.with_context(operation=self.name)
        if self.launch is not None:
            self.launch.join()
        return self._value if finish is None else finish(self._value)

    def withdraw(self) -> None:
        """Give the operation up: its caller waits no more. Each kind does what that means; by default it goes on in the
        background.

        When this returns, the caller's memory is the caller's, unless the operation is ``running``.
        """
        self.withdrawn = True
        self.give_back()

    def give_back(self) -> None:
        """Neither read nor write the caller's memory from here on: copy what is needed of it, divert what comes."""

    def held_by_backend(self) -> list[Operation]:
        """Return, after a withdrawal, the operations that must end before the caller's memory is its own again."""
        return [self] if self.running and not self.done else []

    def detach(self) -> None:
        """Copy on the device what others still need of the caller's memory, after a withdrawal.

        Nothing is ``held_by_backend`` any more. Without the lock, in the caller's thread and its current stream.
        """
        if self.launch is not None and self.succeeded:
            self.launch.join()

    def loans(self) -> Sequence[torch.Tensor]:
        """The memory that it borrows of its caller."""
        return (self.keep,) if isinstance(self.keep, torch.Tensor) else ()

    def needs(self, peer: int) -> bool:  # noqa: ARG002 - for the kinds that have peers
        """Return whether it cannot be done without ``peer``, a world rank, any more."""
        return False

    def ended_with(self, left: frozenset[int]) -> bool:  # noqa: ARG002 - for those of many members
        """Return whether one of ``left``, which gave nothing up, has ended its part: then all have sent theirs."""
        return False

    def awaits(self) -> tuple[int, ...]:
        """World ranks that it waits for now: their silence would concern it."""
        return ()

    def waiting_for(self) -> str:
        """Name the peers or the event it waits for, for the message of a timeout."""
        return ""

    def waited_since(self) -> float:
        """Return the time since which it, or its batch, has a waiter; infinite if it has none."""
        parent = self.parent  # read once: without the lock it may be let go of meanwhile
        return self.since if parent is None else parent.since

    def _settle(self) -> None:
        self.done = True
        self.registry.operations.discard(self)
        self.wake()
        if self.parent is not None:
            parent, self.parent = self.parent, None
            parent.one_done()

    def wake(self) -> None:
        """Wake its waiter, who may have been woken before."""
        if self._wake is not None:
            self._wake()

    def set_deadline(self, timeout: float | None) -> None:
        """Start the clock: ``timeout`` seconds from now, None for the world's. Without the lock."""
        registry = self.registry
        self.timeout = registry.op_timeout if timeout is None else timeout
        self.since = now = registry.clock()
        self.deadline = deadline = now + self.timeout
        if deadline < registry.next_look:  # seldom: deadlines mostly come in the order of their operations
            registry.look_at(deadline)

    def watch(self) -> None:
        """Let its end be noticed where it has no waiter of its own; it may be done already."""

    def attach(self, wake: Callable[[], None] | None) -> bool:
        """Call ``wake`` when it is done; False if it is done already."""
        if wake is not None:
            self.watch()
        if self.done:
            return False
        self._wake = wake
        return True


class Launch:
    """One call of a driver, for one operation.

    Args:
        operation: what it is for.
        ranks: world ranks that take part.
        begin: starts it on the driver; returns the driver's work.
        over: what is to be done when the backend is done with the memory.
        value: of the operation, if it ends as soon as it is enqueued.
        streamed: whether it does.

    Attributes:
        borrows: whether the memory is the caller's, who then waits for the end, whatever happens.
        ready: whether its memory is there; those behind it wait, so that all members start in the same order.
        operation: None once it is over; the operation knows the launch, and nothing is to be left in a circle.
        driver: what it was started on, if streams can wait for it.
        work: the driver's.
        turn: what to call when it becomes ready; set by the queue that it is in.
        followers: operations that wait for its end.
    """

    def __init__(
        self,
        operation: Operation,
        ranks: tuple[int, ...],
        begin: Callable[[Driver], Any],
        over: Callable[[], None],
        *,
        value: Any = None,
        streamed: bool = False,
    ) -> None:
        self.operation: Operation | None = operation
        self.ranks, self.begin, self.over = ranks, begin, over
        self.value, self.streamed = value, streamed
        self.borrows = self.ready = True
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
            self.operation.running = self.borrows
        work = self.begin(driver)
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


class Synchronization(Operation):
    """Waits for the end of all that the backend does for us now."""

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
        us = self.registry.membership.rank
        return tuple({rank for launch in tuple(self._missing) for rank in launch.ranks if rank != us})

    def waiting_for(self) -> str:
        names = ", ".join(sorted({one.operation.name for one in tuple(self._missing) if one.operation is not None}))
        return f"{len(self._missing)} enqueued operations to end on the device ({names})"

    def _check(self) -> None:
        if not self._missing:
            self.complete()


class BatchOperation(Operation):
    """Done when all its operations are; fails with their first failure, when all are done."""

    def __init__(self, registry: Registry, count: int) -> None:
        super().__init__(registry, "batch_p2p")
        self.operations: Sequence[Operation] = ()
        self._missing = count

    def take(self, operations: Sequence[Operation]) -> None:
        """Wait for these, which may be done already."""
        self.operations = operations
        for one in operations:
            if one.done:
                self._missing -= 1
            else:
                one.parent = self
        self._check()

    def watch(self) -> None:
        for one in self.operations:
            one.watch()

    def one_done(self) -> None:
        """Count the end of one of them."""
        self._missing -= 1
        self._check()

    def withdraw(self) -> None:
        self.withdrawn = True
        self.registry.operations.discard(self)
        for one in self.operations:
            one.withdraw()

    def give_back(self) -> None:
        """See ``Operation.give_back``; its waiter may be woken before these fail."""
        for one in self.operations:
            if not one.done:
                one.give_back()

    def held_by_backend(self) -> list[Operation]:
        return [held for one in self.operations for held in one.held_by_backend()]

    def detach(self) -> None:
        for one in self.operations:
            one.detach()

    def loans(self) -> list[torch.Tensor]:
        return [memory for one in self.operations for memory in one.loans()]

    def awaits(self) -> tuple[int, ...]:
        return tuple({rank for one in self.operations if not one.done for rank in one.awaits()})

    def waiting_for(self) -> str:
        return ", ".join(one.waiting_for() for one in self.operations if not one.done)

    def _check(self) -> None:
        if self._missing == 0 and not self.done:
            self.finish = lambda _: _results(self.operations)
            self.complete()


def _results(parts: Sequence[Operation]) -> list[int | None]:
    """Make the results of all, also of those after one that failed; raises the first error."""
    results, failures = [], []
    for one in parts:
        try:
            results.append(_result(one))
        except MultiWorldError as error:  # noqa: PERF203 - the others are asked for too
            failures.append(error)
    if failures:
        raise failures[0]
    return results


def _result(one: Operation) -> int | None:
    try:
        value = one.result()
    except MultiWorldError as error:
        raise error.with_context(operation=f"batch_p2p ({one.name})") from None
    return value if one.name == "recv" else None
