"""One operation in flight, and the two ways to wait for it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from multiworld.errors import MultiWorldError

if TYPE_CHECKING:
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
        running: the backend works on it.
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
        """Record the failure and wake whoever waits."""
        if not self.done:
            self._error = error
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
        """Nobody waits any more; what that means is the kind's to say. By default it goes on in the background."""
        self.withdrawn = True

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
        elif self._wake >= 0:
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
    """Await the outcome in the session's event loop; a cancelled await withdraws the operation."""
    session = operation.session
    operation.set_deadline(timeout)
    future = asyncio.get_running_loop().create_future()
    with session.lock:
        if not operation.attach(future, -1):
            return
    try:
        await future
    except asyncio.CancelledError:
        with session.lock:
            operation.attach(None, -1)
            operation.withdraw()
        raise


def wait_sync(operation: Operation, timeout: float | None) -> None:
    """Wait in this thread, moving the session's data meanwhile; an interrupt withdraws the operation."""
    session = operation.session
    operation.set_deadline(timeout)
    with session.drivers_seat() as seat:
        with session.lock:
            if not operation.attach(None, seat.wake):
                return
        try:
            while not operation.done:
                seat.turn()
        except BaseException:
            with session.lock:
                operation.attach(None, -1)
                operation.withdraw()
            raise
