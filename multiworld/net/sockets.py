"""The connections of this process that a forked child must not keep: peers learn of our end by the end of these.

A fork waits while a socket is made, so a child knows all of them, whatever the threads that have them were doing.
"""

from __future__ import annotations

import socket
import threading
import weakref
from collections.abc import Callable
from typing import Final, ParamSpec

#: how long a fork waits at most; to make a socket takes microseconds
FORK_SECONDS: Final = 1.0

P = ParamSpec("P")

_guard = threading.RLock()
_waited = False  # for the guard, by the thread that forks
_ours: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def made(make: Callable[P, socket.socket], /, *args: P.args, **kwargs: P.kwargs) -> socket.socket:
    """Call ``make``, which returns a new socket without waiting for anything; it is ours, and none of a child's."""
    with _guard:
        sock = make(*args, **kwargs)
        _ours.add(sock)
    return sock


def accepted(listener: socket.socket) -> socket.socket:
    """The next connection of a listener that does not block; raises ``OSError`` as ``accept`` does."""
    return made(lambda: listener.accept()[0])


def connected(host: str, port: int, timeout: float) -> socket.socket:
    """``socket.create_connection``, except that a child forked meanwhile has no copy.

    Args:
        timeout: seconds for each address of ``host``, and of the socket afterwards.

    Raises:
        OSError: no address answers in time; that of the last one.
    """
    failed = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = made(socket.socket, family, kind, protocol)
        try:
            sock.settimeout(timeout)
            sock.connect(address)
        except OSError as error:
            sock.close()
            failed = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failed


def before_fork() -> None:
    global _waited
    _waited = _guard.acquire(timeout=FORK_SECONDS)


def after_fork_in_parent() -> None:
    global _waited
    if _waited:
        _waited = False
        _guard.release()


def after_fork_in_child() -> None:
    """Close our copies; the parent's stay as they are, as nothing is shut down and no selector is told."""
    global _guard, _waited
    _guard, _waited = threading.RLock(), False
    for sock in list(_ours):
        sock.close()
    _ours.clear()
