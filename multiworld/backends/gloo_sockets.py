"""The sockets of this process that belong to one backend instance, known by the addresses that its members published.

Gloo offers no way to release its waiters, but they end when its sockets are shut down. A backend publishes the socket
address it listens on; a connection of its has that address on our side or a member's on the other. That is exact,
needs no lock around the creation of connections, and never takes a socket of somebody else.
"""

from __future__ import annotations

import ctypes
import logging
import os
import socket
import stat
import struct
from collections.abc import Callable, Iterable, Sequence

from multiworld.transport.descriptors import descriptor_shortage, open_numbers, reserve

logger = logging.getLogger(__name__)

_SO_ATTACH_FILTER = 26  # Python does not name it
#: a classic BPF program of one instruction: return 0, keep nothing of any packet (BPF_RET | BPF_K)
_DROP_ALL = struct.pack("=HBBI", 0x06, 0, 0, 0)


def shut_down(own: Sequence[bytes], others: Sequence[bytes]) -> int:
    """Shut down the TCP connections of one backend instance; never its listener, over whose end Gloo ends the process.

    Works without a free descriptor.

    Args:
        own: values that we published; each holds the ``sockaddr`` we listen on.
        others: values that the other members published.

    Returns:
        How many sockets were shut down.
    """

    def end(sock: socket.socket) -> bool:
        if not _belongs(sock, own, others):
            return False
        sock.shutdown(socket.SHUT_RDWR)
        return True

    return each_socket(end)


def remaining(own: Sequence[bytes], others: Sequence[bytes]) -> int:
    """Return how many TCP connections of one backend instance are open still."""
    return each_socket(lambda sock: _belongs(sock, own, others))


def deafen(own: Sequence[bytes], likely: Iterable[int] = ()) -> int:
    """Refuse further connections to a backend instance whose members are all connected.

    Gloo ends the process when it cannot accept, as it cannot without a free descriptor. A packet filter on the listener
    drops every SYN, so that there is nothing to accept. The listener itself stays open.

    Args:
        own: values that we published; each holds the ``sockaddr`` we listen on.
        likely: descriptors among which the listener is looked for first. To look at all of a process costs too much
            where it has many: 64 members in one process have 12,000, and each of them looks.

    Returns:
        How many listeners were closed to strangers; 0 where the kernel takes no filter.
    """

    def filter_out(sock: socket.socket) -> bool:
        if not _is_tcp(sock, listens=True) or not _published(sock.family, sock.getsockname(), own):
            return False
        program = ctypes.create_string_buffer(_DROP_ALL, len(_DROP_ALL))
        try:  # struct sock_fprog: the number of instructions, and where they are
            filtered = struct.pack("@HP", 1, ctypes.addressof(program))
            sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filtered)
        except OSError as error:
            logger.debug("gloo: no filter on its listener: %s", error)
            return False
        return True

    return each_socket(filter_out, likely) or each_socket(filter_out)


def _is_tcp(sock: socket.socket, *, listens: bool) -> bool:
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
        return False
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) == listens


def _belongs(sock: socket.socket, own: Sequence[bytes], others: Sequence[bytes]) -> bool:
    if not _is_tcp(sock, listens=False):
        return False
    known = _published(sock.family, sock.getsockname(), own)
    return known or _published(sock.family, sock.getpeername(), others)


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


def each_socket(act: Callable[[socket.socket], bool], numbers: Iterable[int] | None = None) -> int:
    """Call ``act`` with each socket among ``numbers``, or of this process; how often it was true.

    It gets a copy of the descriptor: the original may be closed meanwhile, and its number be another's.
    """
    return sum(_acted(act, number) for number in (open_numbers() if numbers is None else numbers))


def _acted(act: Callable[[socket.socket], bool], number: int) -> bool:
    try:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return False
        with reserve.copied(number) as copy:
            return act(copy)
    except OSError as error:
        shortage = descriptor_shortage(error)
        if shortage is not None:
            logger.warning("a socket could not be looked at: %s", shortage)
        return False
