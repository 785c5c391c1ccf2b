"""Operations that their callers give up: when a function of these returns, the caller's memory is the caller's again.

On a device that is so in the order of the calling thread's current stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from functools import partial
from typing import TYPE_CHECKING

from multiworld.process.threads import start_or_run

if TYPE_CHECKING:
    from multiworld.matching.operation import Operation
    from multiworld.session.session import Session

logger = logging.getLogger(__name__)


def give_up(session: Session, operation: Operation) -> None:
    """Give up what this thread has waited for."""
    for held in _withdrawn(session, operation):
        _end_now(session, held)
    _detach(session, operation)


async def give_up_awaited(session: Session, operation: Operation, error: BaseException) -> None:
    """Give up what this task has awaited until ``error``: it was cancelled, or is thrown away with its event loop."""
    held = _withdrawn(session, operation)
    if isinstance(error, asyncio.CancelledError):
        for one in held:
            await _until_done(session, one)
        _detach(session, operation)
    elif held:  # nothing can be awaited any more
        start_or_run(f"mw-left-{session.name}", partial(_leave_behind, session, operation, held))
    else:
        _detach(session, operation)


def _withdrawn(session: Session, operation: Operation) -> list[Operation]:
    """Withdraw it; those whose memory the backend still uses."""
    if operation.in_step:
        session.cancelled(operation.name)
    with session.lock:
        operation.attach(None)
        operation.withdraw()
        return operation.held_by_backend()


def _detach(session: Session, operation: Operation) -> None:
    """Copy what is still needed of the caller's memory; without that the others would wait for us in vain."""
    try:
        operation.detach()
    except Exception as error:
        logger.exception("world %r: %s was cancelled", session.name, operation.name)
        session.abort(f"{operation.name} was cancelled, and what the others need of it cannot be copied: {error}")


def _end_now(session: Session, operation: Operation) -> None:
    """Wait for the end of an operation that cannot be withdrawn; a second interrupt breaks the world for it."""
    try:
        session.bridge.wait(operation)
    except BaseException:
        session.abort(f"{operation.name} was interrupted twice")
        session.bridge.wait(operation)
        raise


async def _until_done(session: Session, operation: Operation) -> None:
    """Wait for the end of an operation that cannot be withdrawn, however often the await is cancelled meanwhile.

    It ends: all members take part in it, so that it is done soon, or the world breaks.
    """
    future = asyncio.get_running_loop().create_future()
    with session.lock:
        if not operation.attach(partial(session.bridge.resolve, future)):
            return
    while not future.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({future})


def _leave_behind(session: Session, operation: Operation, held: list[Operation]) -> None:
    """Wait until the backend has released the tensors, then copy what is still needed."""
    for one in held:
        ended = threading.Event()
        with session.lock:
            waiting = one.attach(ended.set)
        if waiting:
            ended.wait()
    _detach(session, operation)
