"""The end of a session: waiters first, then sockets, then threads and memory.

``release`` and ``cut`` run under the session's lock and block on nothing: whoever waits has its exception when they
return, except for those whose memory the backend still works on. They have it when the backend lets go, which is as
soon as its connections are closed. ``free`` does what may take time in a thread of its own, with a deadline.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import socket
import struct
import termios
import time
from typing import TYPE_CHECKING

from multiworld.errors import BrokenWorldException
from multiworld.process import patience
from multiworld.threads import start_or_run

if TYPE_CHECKING:
    from multiworld.net.lane import Lane
    from multiworld.session import Session

logger = logging.getLogger(__name__)

DRIVER_SECONDS = 10.0
#: a backend that has not let go of a caller's memory after this long never will: its connections are closed
HELD_SECONDS = 0.5
#: how long a leaving member waits for what it sent to be taken
LINGER_SECONDS = 2.0


def release(session: Session, error: BrokenWorldException, *, orderly: bool = False) -> None:
    """Fail every operation with ``error``, and let nothing begin any more; under the session's lock."""
    cut = not orderly or any(operation.running for operation in session.operations)
    for lane in session.lanes.values():  # first: from here on nothing is written to anybody's memory
        lane.stop_reading() if orderly else lane.cut()
    for operation in tuple(session.operations):
        if not operation.running:
            operation.fail(error)
    session.hub.call_later(HELD_SECONDS, lambda: _fail_rest(session, error))
    session.any_receives.clear()
    for slot in session.slots.values():
        slot.stop(cut=cut)
    session.hub.monitor.remove(session)
    session.hub.call(session.arm)  # takes the alarm back
    session.acceptor.close()


def _fail_rest(session: Session, error: BrokenWorldException) -> None:
    with session.lock:
        for operation in tuple(session.operations):
            operation.fail(error)


def cut(session: Session) -> None:
    """End the data connections; under the session's lock."""
    for lane in session.lanes.values():
        with contextlib.suppress(OSError):
            lane.sock.shutdown(socket.SHUT_RDWR)


def free(session: Session, *, orderly: bool = False, linger: float = LINGER_SECONDS) -> None:
    """Give back sockets, threads and backends; in the background, except for an orderly end, which the caller waits
    for."""
    if orderly:
        _linger(session, linger)
        _free(session)
        return
    start_or_run(f"mw-free-{session.name}", lambda: _free(session))


def _free(session: Session) -> None:
    session.bridge.close()
    session.control.close()
    for slot in tuple(session.slots.values()):
        try:
            slot.free(patience(DRIVER_SECONDS))
        except Exception:  # noqa: PERF203 - one slot's failure must not keep the others
            logger.exception("world %r: its backend could not be freed", session.name)
    if session.failure is not None:
        _fail_rest(session, session.failure)
    session.freed.set()


def _linger(session: Session, seconds: float) -> None:
    """Write what is left, say that nothing follows, and wait until the peers have taken it or a while has passed."""
    until = time.monotonic() + seconds
    pending = list(session.lanes.values())
    while pending and time.monotonic() < until:
        pending = [lane for lane in pending if not _finished(session, lane)]
        if pending:
            time.sleep(0.001)


def _finished(session: Session, lane: Lane) -> bool:
    with session.lock:
        if lane.backlog and not lane.ended:
            lane.flush()
        if lane.backlog and not lane.ended:
            return False
        lane.ended = True  # nobody else reads from it any more
        with contextlib.suppress(OSError):
            lane.sock.shutdown(socket.SHUT_WR)
        return _taken(lane.sock)


def _taken(sock: socket.socket) -> bool:
    """Whether the peer's machine has all that was written.

    What the peer sent is read and dropped: to close a socket with something unread resets the connection, and what is
    on its way is lost.
    """
    try:
        while sock.recv(1 << 16):
            pass
    except BlockingIOError:
        unacknowledged = struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, b"\0" * 4))[0]
        return bool(unacknowledged <= 1)  # the end itself counts as one
    except OSError:
        pass
    return True  # the peer has ended the connection


def drop_in_child(session: Session) -> None:
    """Close our copies in a forked child; nothing is shut down, so the parent's connections stay as they are."""
    for lane in session.lanes.values():
        lane.sock.close()
    session.control.drop()
    for slot in session.slots.values():
        slot.drop_in_child()
