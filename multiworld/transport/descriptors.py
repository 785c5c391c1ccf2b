"""File descriptors: how many are free, a few kept back for when none are, and the words for a shortage.

A process without free descriptors can neither accept nor look at its own sockets. The package keeps a few, so that
what frees others can still be done.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import threading
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from multiworld.errors import DescriptorsExhausted
from multiworld.transport.sockets import accepted

P = ParamSpec("P")
T = TypeVar("T")

#: descriptors kept back: one stays, one can be written over, two can be given up
RESERVED = 4
#: errors of an accept that fails for lack of something that others may give back soon
NO_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_SAID_BY_TORCH = os.strerror(errno.EMFILE)


def descriptor_shortage(error: BaseException) -> str | None:
    """Return the words for ``error`` if it comes of a lack of file descriptors; None if it does not.

    Args:
        error: an ``OSError``, or an error of torch's, which carry no number but the system's text. The resolver reports
            a lack as an unknown name or a failure of the name service, so it is tried out.
    """
    number = getattr(error, "errno", None)
    if number == errno.ENFILE:
        return "the system has no free file descriptors (see /proc/sys/fs/file-max)"
    by_resolver = isinstance(error, socket.gaierror) and none_free()
    if number == errno.EMFILE or by_resolver or _SAID_BY_TORCH in str(error):
        return f"this process has no free file descriptors (limit {limit()})"
    return None


def limit() -> int:
    """Return the number of descriptors that this process may have: the soft limit, ``ulimit -n``."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def none_free() -> bool:
    try:
        os.close(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return descriptor_shortage(error) is not None
    return False


class Reserve:
    """Descriptors that are kept back; all methods may be called from any thread."""

    def __init__(self, size: int = RESERVED) -> None:
        self._size = size
        self._guard = threading.RLock()
        self._held: list[int] = []

    def fill(self) -> None:
        """Keep back as many as are meant to be, as far as they are free."""
        with self._guard, contextlib.suppress(OSError):
            while len(self._held) < self._size:
                self._held.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))

    def empty(self) -> None:
        with self._guard:
            while self._held:
                os.close(self._held.pop())

    def after_fork(self) -> None:
        """In a forked child, where another thread may have held the lock: give back our copies."""
        self._guard = threading.RLock()
        self.empty()

    def refuse(self, listener: socket.socket) -> bool:
        """Accept one connection for which no descriptor is free, and close it, so that its other end need not wait.
        False if that failed: the listener stays readable, and is best left alone for a while."""
        with self._guard:
            if not self._held:
                return False
            os.close(self._held.pop())
            try:
                accepted(listener).close()
            except OSError:
                return False
            finally:
                self.fill()
            return True

    def make(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``function``, which opens one descriptor; if none is free, one of the reserve is closed for it."""
        with self._guard:
            try:
                made = function(*args, **kwargs)
            except OSError as error:
                if descriptor_shortage(error) is None or not self._held:
                    raise
                os.close(self._held.pop())
                return function(*args, **kwargs)
        self.fill()
        return made


#: of this process; kept back from the first ``MultiWorld`` to the end of the last
reserve = Reserve()


def system_message(error: OSError) -> str:
    """The operating system's message alone: Python's ``create_server`` appends the address again."""
    number = error.errno or 0
    return os.strerror(number) if number > 0 else error.strerror or str(error)  # the resolver's are below 0


def cause_of(error: OSError, otherwise: str) -> tuple[str, str | None]:
    """The cause of ``error``, ``otherwise`` if it is unknown here, and the remedy; None where only the caller knows."""
    shortage = descriptor_shortage(error)
    if shortage is not None:
        of_system = "raise the limit (sysctl fs.file-max), or end programs that hold many"
        return shortage, of_system if error.errno == errno.ENFILE else DescriptorsExhausted.what_to_do
    if isinstance(error, socket.gaierror):
        cause = "the host's name is not known here, or the name service does not answer"
        return cause, "correct the name, or pass an address in numbers"
    if error.errno == errno.ECONNREFUSED:
        return "no process listens there: its host has not started, has ended, or listens elsewhere", None
    if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN):
        return "there is no route to it", "check the network, or choose an address that is reached from here"
    return otherwise, None
