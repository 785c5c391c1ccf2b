"""Which sockets of this process belong to one backend instance: exactly those whose addresses its members published.

Gloo offers no way to release its waiters, but they end when its sockets are shut down. A backend publishes the socket
address it listens on; a connection of its has that address on our side or a member's on the other. That is exact,
needs no lock around the creation of connections, and never takes a socket of somebody else.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path


def shut_down(own: Sequence[bytes], others: Sequence[bytes]) -> int:
    """Shut down the TCP connections of one backend instance; never its listener, over whose end Gloo ends the process.

    Args:
        own: values that we published; each holds the ``sockaddr`` we listen on.
        others: values that the other members published.

    Returns:
        How many sockets were shut down.
    """
    count = 0
    for copy in _sockets():
        with copy, contextlib.suppress(OSError):
            if _belongs(copy, own, others):
                copy.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


def remaining(own: Sequence[bytes], others: Sequence[bytes]) -> int:
    """How many TCP connections of one backend instance are open still."""
    count = 0
    for copy in _sockets():
        with copy, contextlib.suppress(OSError):
            count += _belongs(copy, own, others)
    return count


def _belongs(sock: socket.socket, own: Sequence[bytes], others: Sequence[bytes]) -> bool:
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
        return False
    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return False
    if _published(sock.family, sock.getsockname(), own):
        return True
    return _published(sock.family, sock.getpeername(), others)


def _published(family: int, address: tuple[object, ...], values: Iterable[bytes]) -> bool:
    host, port = str(address[0]), int(str(address[1]))
    # A socket on its way to be connected has port 0 and no address: eight bytes that are nearly all zero, as they are
    # in any published value (a world of size 2 has them for its size).
    return port != 0 and any(_sockaddr(family, host, port) in value for value in values)


def _sockaddr(family: int, host: str, port: int) -> bytes:
    """``struct sockaddr_in`` up to the address, or ``sockaddr_in6`` with flow label 0."""
    packed = socket.inet_pton(family, host.partition("%")[0])
    head = struct.pack("=H", family) + struct.pack("!H", port)
    return head + packed if family == socket.AF_INET else head + bytes(4) + packed


def _sockets() -> Iterator[socket.socket]:
    """A duplicate of each socket of this process; closing it leaves the original open."""
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if entry.readlink().parts[0].startswith("socket:"):
                yield socket.socket(fileno=os.dup(int(entry.name)))
