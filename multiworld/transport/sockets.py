"""The connections of this process that a forked child must not keep: peers learn of our end by the end of these.

A fork waits while a socket is made or copied, so a child knows all of them, whatever the threads that have them were
doing. It knows their descriptors, too: where a thread has begun to close a socket, only the descriptor is left.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final, ParamSpec

#: how long a fork waits at most; to make a socket takes microseconds
FORK_SECONDS: Final = 1.0
#: of a listener
BACKLOG: Final = 1024

P = ParamSpec("P")


class _Held(threading.local):
    """The number of times that the calling thread, which forks, has the guard: forks nest."""

    times = 0


_guard = threading.RLock()
_held = _Held()
#: number and inode of each; an inode tells a socket from what has its number later
_ours: weakref.WeakKeyDictionary[socket.socket, tuple[int, int]] = weakref.WeakKeyDictionary()


def made(make: Callable[P, socket.socket], /, *args: P.args, **kwargs: P.kwargs) -> socket.socket:
    """Call ``make``, which returns a new socket without waiting for anything; it is ours, and none of a child's."""
    with _guard:
        sock = make(*args, **kwargs)
        _ours[sock] = sock.fileno(), os.fstat(sock.fileno()).st_ino
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
    *others, (family, *_, address) = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for other, *_, elsewhere in others:
        with contextlib.suppress(OSError):
            return _connected(other, elsewhere, timeout)
    return _connected(family, address, timeout)


def named(name: str) -> str:
    """Return the address of a socket of this machine: an abstract one, of this network namespace, without a file."""
    return f"\0multiworld-{name}"


def listening_here(name: str) -> socket.socket:
    """Listen to processes of this machine and network namespace; raises ``OSError``."""
    sock = made(socket.socket, socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(named(name))
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def connected_here(name: str, timeout: float) -> socket.socket:
    """Connect to the process of this machine and network namespace that listens under ``name``; raises ``OSError``."""
    return _connected(socket.AF_UNIX, named(name), timeout)


def _connected(family: socket.AddressFamily, address: Any, timeout: float) -> socket.socket:
    sock = made(socket.socket, family, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock


def before_fork() -> None:
    if _guard.acquire(timeout=FORK_SECONDS):
        _held.times += 1


def after_fork_in_parent() -> None:
    if _held.times:
        _held.times -= 1
        _guard.release()


def after_fork_in_child() -> None:
    """Close our copies; the parent's stay as they are, as nothing is shut down and no selector is told."""
    global _guard, _held
    _guard, _held = threading.RLock(), _Held()
    for sock, (number, inode) in list(_ours.items()):
        with contextlib.suppress(OSError):  # another library's hook has closed it
            if sock.fileno() != -1:
                sock.close()
            elif os.fstat(number).st_ino == inode:
                os.close(number)
    _ours.clear()
