"""What an ``OSError`` means for the reader: the likely cause, and what to do about it."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass

from multiworld.net.descriptors import limit, none_free

_EXHAUSTED = (errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a call of the operating system failed.

    Attributes:
        cause: the likely cause.
        remedy: what to do about it; None where only the caller can say.
    """

    cause: str
    remedy: str | None = None


def exhausted(error: BaseException) -> bool:
    """Whether ``error`` says that no file descriptor is free.

    The resolver reports that as a temporary failure of the name service, so that it is tried out.
    """
    if isinstance(error, socket.gaierror) and error.errno in (socket.EAI_AGAIN, socket.EAI_SYSTEM, socket.EAI_FAIL):
        return none_free()
    return isinstance(error, OSError) and error.errno in _EXHAUSTED


def cause_of(error: OSError, otherwise: str) -> Cause:
    """The cause of ``error``; ``otherwise`` where it is none that is known here."""
    if exhausted(error):
        return _exhaustion(error)
    if isinstance(error, socket.gaierror):
        return Cause(
            "the host's name is not known here, or the name service does not answer",
            "correct the name, or pass an address in numbers",
        )
    if error.errno == errno.ECONNREFUSED:
        return Cause("nobody listens there: its host has not started, has ended, or listens elsewhere")
    if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN):
        return Cause("there is no route to it", "check the network, or choose an address that is reached from here")
    return Cause(otherwise)


def _exhaustion(error: OSError) -> Cause:
    if error.errno == errno.ENFILE:
        return Cause(
            "this machine has no free file descriptors",
            "raise the limit (sysctl fs.file-max), or end programs that hold many",
        )
    return Cause(
        f"this process has no free file descriptors (limit {limit()})",
        "raise the limit (ulimit -n), or close worlds, files and connections that are not needed",
    )
