"""One operation in flight, and the two ways to wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from multiworld.errors import MultiWorldError

if TYPE_CHECKING:
    from multiworld.net.bridge import SyncPoller
    from multiworld.ops.batch import BatchOperation
    from multiworld.session import Session


class Operation:
    """An operation from its start to its outcome. Completed at most once, under the session's lock.

    Attributes:
        name: of the operation, for messages.
        session: what it runs in.
        done: whether the outcome is there.
        since: monotonic time since which somebody waits for it; infinite until then.
        deadline: monotonic time after which the session breaks; infinite until somebody waits.
        withdrawn: nobody waits for it any more.
        running: the backend works on the caller's memory, and cannot be told to use another.
        keep: what must stay alive until it is done, such as tensors.
        finish: makes the result of the value, in the thread that asked.
        parent: the batch it is part of.
    """

    __slots__ = (
        "_error",
        "_future",
        "_value",
        "_wake",
        "deadline",
        "done",
        "finish",
        "keep",
        "name",
        "parent",
        "running",
        "session",
        "since",
        "timeout",
        "withdrawn",
    )

    def __init__(self, session: Session, name: str, keep: Any = None) -> None:
        self.session = session
        self.name = name
        self.done = False
        self.withdrawn = False
        self.running = False
        self.since = self.deadline = float("inf")
        self.timeout = 0.0
        self.keep = keep
        self.finish: Callable[[Any], Any] | None = None
        self.parent: BatchOperation | None = None
        self._value: Any = None
        self._error: MultiWorldError | None = None
        self._future: asyncio.Future[None] | None = None
        self._wake = -1

    def complete(self, value: Any = None) -> None:
        """Record success and wake whoever waits."""
        if not self.done:
            self._value = value
            self._settle()

    def fail(self, error: MultiWorldError) -> None:
        """Record the failure, give the caller's memory back and wake whoever waits."""
        if not self.done:
            self._error = error
            self.give_back()
            self._settle()

    @property
    def succeeded(self) -> bool:
        """Whether it is done, and well."""
        return self.done and self._error is None

    def result(self) -> Any:
        """The value of a done operation; raises its error, with this operation's name in it."""
        if self._error is not None:
            raise self._error.with_context(operation=self.name)
        return self._value if self.finish is None else self.finish(self._value)

    def withdraw(self) -> None:
        """Nobody waits any more; what that means is the kind's to say. By default it goes on in the background.

        When this returns, the caller's memory is the caller's, unless the operation is ``running``.
        """
        self.withdrawn = True
        self.give_back()

    def give_back(self) -> None:
        """Neither read nor write the caller's memory from here on: copy what is needed of it, divert what comes."""

    def loans(self) -> Sequence[torch.Tensor]:
        """The memory that it borrows of its caller."""
        return (self.keep,) if isinstance(self.keep, torch.Tensor) else ()

    def needs(self, peer: int) -> bool:  # noqa: ARG002 - for the kinds that have peers
        """Whether it cannot be done without ``peer``, a world rank, any more."""
        return False

    def awaits(self) -> tuple[int, ...]:
        """World ranks that it waits for now: their silence would concern it."""
        return ()

    def waiting_for(self) -> str:
        """Whom or what it waits for, for the message of a timeout."""
        return ""

    def waited_since(self) -> float:
        """Since when somebody waits for it, or for the batch that it is part of; infinite if nobody does."""
        return self.since if self.parent is None else self.parent.since

    def _settle(self) -> None:
        self.done = True
        self.session.operations.discard(self)
        if self._future is not None:
            self.session.resolve(self._future)
        elif self._wake >= 0 and self._wake != self.session.mover:  # who moves the data looks when it has moved it
            os.eventfd_write(self._wake, 1)
        if self.parent is not None:
            self.parent.part_done()

    def set_deadline(self, timeout: float | None) -> None:
        """Start the clock: ``timeout`` seconds from now, None for the world's."""
        session = self.session
        self.timeout = session.op_timeout if timeout is None else timeout
        self.since = now = time.monotonic()
        self.deadline = deadline = now + self.timeout
        if deadline < session.next_look:  # seldom: deadlines mostly come in the order of their operations
            session.look_at(deadline)

    def attach(self, future: asyncio.Future[None] | None, wake: int) -> bool:
        """Register who is to be woken; False if it is done already. Under the session's lock."""
        if self.done:
            return False
        self._future, self._wake = future, wake
        return True


async def wait_async(operation: Operation, timeout: float | None) -> None:
    """Await the outcome in the session's event loop; a cancelled await withdraws the operation.

    It is not left before the caller's memory is the caller's again.
    """
    session = operation.session
    operation.set_deadline(timeout)
    future = asyncio.get_running_loop().create_future()
    with session.lock:
        if not operation.attach(future, -1):
            return
    try:
        await future
    except asyncio.CancelledError:
        if _withdrawn(operation):
            await _until_done(operation)
        raise
    except BaseException:  # the coroutine is thrown away with its event loop: there is nobody left to wait
        _withdrawn(operation)
        raise


def _withdrawn(operation: Operation) -> bool:
    """Withdraw an operation that nobody waits for; whether the backend still works on the caller's memory."""
    with operation.session.lock:
        operation.attach(None, -1)
        operation.withdraw()
        return operation.running and not operation.done


async def _until_done(operation: Operation) -> None:
    """Wait for the end of an operation that cannot be withdrawn, however often we are cancelled meanwhile.

    It ends: all members take part in it, so that it is done soon, or the world breaks.
    """
    future = asyncio.get_running_loop().create_future()
    with operation.session.lock:
        if not operation.attach(future, -1):
            return
    while not future.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({future})


def wait_sync(operation: Operation, timeout: float | None) -> None:
    """Wait in this thread, moving the session's data meanwhile; an interrupt withdraws the operation.

    It is not left before the caller's memory is the caller's again.
    """
    try:
        _wait_polling(operation, timeout)
    except BaseException:
        if not operation.withdrawn and _withdrawn(operation):  # interrupted before there was a wait, or after it
            operation.session.interrupted(f"{operation.name} began")
        raise


def _wait_polling(operation: Operation, timeout: float | None) -> None:
    session = operation.session
    operation.set_deadline(timeout)
    with session.sync_poller() as poller:
        with session.lock:
            if not operation.attach(None, poller.wake):
                return
        try:
            _turn_until_done(operation, poller)
        except BaseException:
            if _withdrawn(operation):
                _end_now(operation, poller)
            raise


def _turn_until_done(operation: Operation, poller: SyncPoller) -> None:
    while not operation.done:
        poller.turn()


def _end_now(operation: Operation, poller: SyncPoller) -> None:
    """Wait for the end of an operation that cannot be withdrawn; a second interrupt breaks the world for it."""
    with operation.session.lock:
        if not operation.attach(None, poller.wake):
            return
    try:
        _turn_until_done(operation, poller)
    except BaseException:
        operation.session.abort(f"{operation.name} was interrupted twice")
        _turn_until_done(operation, poller)
        raise
