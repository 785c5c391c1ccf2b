"""The two ways to wait for an operation: awaited in the world's event loop, or by a thread that moves the data itself.

Neither returns before the caller's memory is the caller's again. On a device that is so in the order of the calling
thread's current stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from multiworld.process.threads import start_or_run

if TYPE_CHECKING:
    from multiworld.matching.engine import Engine
    from multiworld.matching.membership import Membership
    from multiworld.matching.operation import Operation
    from multiworld.transport.poller import LoopBridge, SyncPoller

logger = logging.getLogger(__name__)


class OperationHost(Protocol):
    """What operations run in, and what moves their data: a session."""

    @property
    def name(self) -> str: ...
    @property
    def engine(self) -> Engine: ...
    @property
    def membership(self) -> Membership: ...
    @property
    def lock(self) -> AbstractContextManager[Any]: ...
    @property
    def bridge(self) -> LoopBridge: ...
    def sync_poller(self) -> AbstractContextManager[SyncPoller]: ...
    def interrupted(self, what: str) -> None: ...
    def cancelled(self, name: str) -> None: ...
    def torch_failed(self, error: RuntimeError) -> None: ...
    def abort(self, reason: str) -> None: ...


async def wait_async(session: OperationHost, operation: Operation, timeout: float | None) -> None:
    """Await the outcome in the session's event loop; a cancelled await withdraws the operation."""
    operation.set_deadline(timeout)
    future = asyncio.get_running_loop().create_future()
    with session.lock:
        if not operation.attach(partial(session.bridge.resolve, future)):
            return
    try:
        await future
    except asyncio.CancelledError:
        for lent in _withdrawn(session, operation):
            await _until_done(session, lent)
        _part(session, operation)
        raise
    except BaseException:  # the coroutine is thrown away with its event loop: there is nobody left to wait
        _leave_behind(session, operation, _withdrawn(session, operation))
        raise


def _withdrawn(session: OperationHost, operation: Operation) -> list[Operation]:
    """Withdraw an operation that nobody waits for; what the backend still does with the caller's memory."""
    if operation.in_step:
        session.cancelled(operation.name)
    with session.lock:
        operation.attach(None)
        operation.withdraw()
        return operation.held_by_backend()


def _part(session: OperationHost, operation: Operation) -> None:
    """Copy what is still needed of the caller's memory; without that the others would wait for us in vain."""
    try:
        operation.detach()
    except Exception as error:
        logger.exception("world %r: %s was cancelled", session.membership.name, operation.name)
        session.abort(f"{operation.name} was cancelled, and what the others need of it cannot be copied: {error}")


def _leave_behind(session: OperationHost, operation: Operation, lent: list[Operation]) -> None:
    """The same for who cannot wait: what is ``lent`` is waited for elsewhere."""

    def wait() -> None:
        for one in lent:
            ended = threading.Event()
            with session.lock:
                waiting = one.attach(ended.set)
            if waiting:
                ended.wait()
        _part(session, operation)

    if lent:
        start_or_run(f"mw-left-{session.membership.name}", wait)
    else:
        _part(session, operation)


async def _until_done(session: OperationHost, operation: Operation) -> None:
    """Wait for the end of an operation that cannot be withdrawn, however often we are cancelled meanwhile.

    It ends: all members take part in it, so that it is done soon, or the world breaks.
    """
    future = asyncio.get_running_loop().create_future()
    with session.lock:
        if not operation.attach(partial(session.bridge.resolve, future)):
            return
    while not future.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({future})


def wait_sync(session: OperationHost, operation: Operation, timeout: float | None) -> None:
    """Wait in this thread, moving the session's data meanwhile; an interrupt withdraws the operation."""
    try:
        _wait_polling(session, operation, timeout)
    except BaseException:
        if not operation.withdrawn:  # interrupted before the wait, or after it
            if _withdrawn(session, operation):
                session.interrupted(f"{operation.name} began")
            else:
                _part(session, operation)
        raise


def _wait_polling(session: OperationHost, operation: Operation, timeout: float | None) -> None:
    operation.set_deadline(timeout)
    with session.sync_poller() as poller:
        with session.lock:
            if not operation.attach(poller.wake_up):
                return
        try:
            _turn_until_done(operation, poller)
        except BaseException:
            for lent in _withdrawn(session, operation):
                _end_now(session, lent, poller)
            _part(session, operation)
            raise


def _turn_until_done(operation: Operation, poller: SyncPoller) -> None:
    while not operation.done:
        poller.turn()


def _end_now(session: OperationHost, operation: Operation, poller: SyncPoller) -> None:
    """Wait for the end of an operation that cannot be withdrawn; a second interrupt breaks the world for it."""
    with session.lock:
        if not operation.attach(poller.wake_up):
            return
    try:
        _turn_until_done(operation, poller)
    except BaseException:
        session.abort(f"{operation.name} was interrupted twice")
        _turn_until_done(operation, poller)
        raise
