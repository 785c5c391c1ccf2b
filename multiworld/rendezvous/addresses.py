"""Addresses: of names, of this machine on the way to another one, and of those that a store listens on."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from multiworld.threads import within

#: an address of no host (RFC 5737, RFC 3849): the kernel says which of ours would be used on the way out
_ELSEWHERE: Final = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
_SIOCGIFADDR: Final = 0x8915
_IF_INET6: Final = "/proc/net/if_inet6"


@dataclass(frozen=True, slots=True)
class Resolved:
    """One address of a name.

    Attributes:
        family: ``AF_INET`` or ``AF_INET6``.
        address: as sockets take it.
    """

    family: socket.AddressFamily
    address: Any


def resolved(host: str, port: int, left: Callable[[], float]) -> list[Resolved]:
    """The addresses of ``host``; a name is asked for in a thread of its own, because nothing ends that wait.

    Args:
        host: a name or an address.
        port: TCP port.
        left: seconds that are left.

    Raises:
        OSError: there is none, or the name service does not answer in time.
    """
    if _is_numeric(host):
        return _asked(host, port)
    try:
        return within(max(0.0, left()), lambda: _asked(host, port), f"mw-name-{host}", lambda _: None)
    except TimeoutError:
        raise socket.gaierror(socket.EAI_AGAIN, "the name service does not answer") from None


def _asked(host: str, port: int) -> list[Resolved]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [Resolved(family, address) for family, _, _, _, address in found]


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def own_address(towards: Resolved) -> str:
    """Our address on the way to another; no packet is sent.

    Raises:
        OSError: there is no way.
    """
    with socket.socket(towards.family, socket.SOCK_DGRAM) as probe:
        probe.connect(towards.address)
        return str(probe.getsockname()[0])


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens at ``host``:``port``, and there only; ``"::"`` takes IPv4 as well.

    Raises:
        OSError: the address is in use or not ours.
    """
    place = _asked(host, port)[0]
    sock = socket.socket(place.family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if place.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != "::")
        sock.bind(place.address)
        sock.listen(4096)
    except BaseException:
        sock.close()
        raise
    return sock


def usable_address(host: str) -> str:
    """What others connect to when a store listens on ``host``.

    ``host`` itself, unless it is ``"0.0.0.0"`` or ``"::"``, all addresses of this machine: then the one of the default
    route, or the first that is not loopback, or loopback where there is nothing else.
    """
    if not _is_numeric(host) or not ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
        return host
    families = [socket.AF_INET6, socket.AF_INET] if ":" in host else [socket.AF_INET]
    for family in families:
        with contextlib.suppress(OSError):
            return own_address(Resolved(family, (_ELSEWHERE[family], 9)))
    for family in families:
        if found := _of_interfaces(family):
            return found
    return "::1" if ":" in host else "127.0.0.1"


def _of_interfaces(family: socket.AddressFamily) -> str | None:
    """The first address of an interface that is not loopback."""
    return _first_ipv6() if family == socket.AF_INET6 else _first_ipv4()


def _first_ipv6() -> str | None:
    with contextlib.suppress(OSError):
        for line in Path(_IF_INET6).read_text().splitlines():
            found = ipaddress.IPv6Address(int(line.split()[0], 16))
            if not found.is_loopback and not found.is_link_local:
                return str(found)
    return None


def _first_ipv4() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no such address
                reply = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found = ipaddress.IPv4Address(reply[20:24])
                if not found.is_loopback:
                    return str(found)
    return None
