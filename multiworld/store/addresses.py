"""Addresses: of names, of this machine on the way to another one, and of those that a store listens on."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from multiworld.process.threads import within
from multiworld.transport.network_settings import chosen_address, local_addresses

#: one address of a name, as sockets take it: family and address
Resolved: TypeAlias = tuple[socket.AddressFamily, Any]
#: an address of no host (RFC 5737, RFC 3849): the kernel says which of ours would be used on the way out
_ELSEWHERE: Final = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}


def resolved(host: str, port: int, left: Callable[[], float]) -> list[Resolved]:
    """The addresses of ``host``; raises ``OSError`` if there is none, or the name service does not answer in time. A
    name is looked up in a thread of its own, because that wait cannot be ended."""
    if _is_numeric(host):
        return _asked(host, port)
    try:
        return within(max(0.0, left()), lambda: _asked(host, port), f"mw-name-{host}")
    except TimeoutError:
        raise socket.gaierror(socket.EAI_AGAIN, "the name service does not answer") from None


def _asked(host: str, port: int) -> list[Resolved]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def own_address(towards: Resolved) -> str:
    """Our address on the way to another; sends no packet. Raises ``OSError`` if there is no route."""
    family, address = towards
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def usable_address(host: str, interfaces: tuple[str, ...]) -> str:
    """Return the address that others connect to when a store listens on ``host``.

    That is ``host``, unless it stands for all addresses of this machine (``"0.0.0.0"``, ``"::"``). Then it is the one
    that ``interfaces`` choose, else that of the default route, else the first that is not loopback, else loopback.

    Raises:
        InvalidArgument: no address of this machine fits ``interfaces``.
    """
    if not _is_numeric(host) or not ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
        return host
    if interfaces:
        return chosen_address(interfaces)
    families = (socket.AF_INET6, socket.AF_INET) if ":" in host else (socket.AF_INET,)
    for family in families:
        with contextlib.suppress(OSError):
            return own_address((family, (_ELSEWHERE[family], 9)))
    return _first_of(families) or ("::1" if ":" in host else "127.0.0.1")


def _first_of(families: tuple[socket.AddressFamily, ...]) -> str | None:
    """The first address of these families that is not loopback."""
    with contextlib.suppress(OSError):
        for one in local_addresses():
            kind = socket.AF_INET6 if ":" in one.address else socket.AF_INET
            if kind in families and not ipaddress.ip_address(one.address.partition("%")[0]).is_loopback:
                return one.address
    return None
