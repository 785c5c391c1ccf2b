"""Likely causes and remedies of an ``OSError``, in words."""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass

from multiworld.errors import DescriptorsExhausted
from multiworld.transport.descriptors import descriptor_shortage


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a call of the operating system failed; ``remedy`` is None where only the caller knows it."""

    cause: str
    remedy: str | None = None


def system_message(error: OSError) -> str:
    """The operating system's message alone: Python's ``create_server`` appends the address again."""
    number = error.errno or 0
    return os.strerror(number) if number > 0 else error.strerror or str(error)  # the resolver's are below 0


def cause_of(error: OSError, otherwise: str) -> Cause:
    """The cause of ``error``; ``otherwise`` if it is unknown here."""
    shortage = descriptor_shortage(error)
    if shortage is not None:
        of_system = "raise the limit (sysctl fs.file-max), or end programs that hold many"
        return Cause(shortage, of_system if error.errno == errno.ENFILE else DescriptorsExhausted.what_to_do)
    if isinstance(error, socket.gaierror):
        return Cause(
            "the host's name is not known here, or the name service does not answer",
            "correct the name, or pass an address in numbers",
        )
    if error.errno == errno.ECONNREFUSED:
        return Cause("no process listens there: its host has not started, has ended, or listens elsewhere")
    if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN):
        return Cause("there is no route to it", "check the network, or choose an address that is reached from here")
    return Cause(otherwise)
