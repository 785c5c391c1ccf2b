"""The addresses of this machine, and which of them the user wants peers to reach us at."""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from multiworld.errors import InvalidArgument

_IFF_UP: Final = 1
_Network: TypeAlias = "ipaddress.IPv4Network | ipaddress.IPv6Network"


@dataclass(frozen=True, slots=True)
class LocalAddress:
    """An address of an interface that is up; an IPv6 link-local one has its scope, as in ``fe80::1%eth0``."""

    interface: str
    address: str

    def fits(self, wanted: str) -> bool:
        """Return whether it is on the interface, or in the network, ``wanted``."""
        network = _network(wanted)
        if network is None:
            return wanted == self.interface
        return ipaddress.ip_address(self.address.partition("%")[0]) in network

    @property
    def link_local(self) -> bool:
        """True if it has a meaning on one link only."""
        return ipaddress.ip_address(self.address.partition("%")[0]).is_link_local


class _IfAddrs(ctypes.Structure):
    """``struct ifaddrs`` of getifaddrs(3)."""


_IfAddrs._fields_ = [
    ("next", ctypes.POINTER(_IfAddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("addr", ctypes.c_void_p),
    ("netmask", ctypes.c_void_p),
    ("other", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
]


def local_addresses() -> tuple[LocalAddress, ...]:
    """The addresses of all interfaces that are up, IPv4 before IPv6 and link-local ones last; raises ``OSError``."""
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_IfAddrs)()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        found = list(_walk(first))
    finally:
        libc.freeifaddrs(first)
    return tuple(sorted(found, key=lambda a: (":" in a.address, a.link_local)))  # stable: else the kernel's order


def _walk(entry: ctypes._Pointer[_IfAddrs]) -> Iterator[LocalAddress]:
    while entry:
        one = entry.contents
        if one.flags & _IFF_UP and one.addr:
            name = one.name.decode(errors="replace")
            address = _address(one.addr, name)
            if address is not None:
                yield LocalAddress(name, address)
        entry = one.next


def _address(pointer: int, interface: str) -> str | None:
    """The address in a ``struct sockaddr``; None if it is of another family."""
    family = ctypes.c_ushort.from_address(pointer).value
    if family == socket.AF_INET:
        return socket.inet_ntop(family, ctypes.string_at(pointer + 4, 4))
    if family == socket.AF_INET6:
        address = socket.inet_ntop(family, ctypes.string_at(pointer + 8, 16))
        return f"{address}%{interface}" if ipaddress.ip_address(address).is_link_local else address
    return None


def check_interfaces(interfaces: tuple[str, ...]) -> None:
    """Raise ``InvalidArgument`` for an entry that is neither a name nor a network."""
    for wanted in interfaces:
        if not wanted or wanted.split() != [wanted] or ("/" in wanted and _network(wanted) is None):
            raise InvalidArgument(
                what=f"{wanted!r} in interfaces= (MULTIWORLD_INTERFACES) is neither an interface nor a network",
                remedy='name interfaces or networks, such as "eth0,10.0.0.0/8,fd00::/8"',
            )


def chosen_address(interfaces: tuple[str, ...]) -> str:
    """Our first address that fits an entry of ``interfaces``, tried in order; ``InvalidArgument`` if none fits."""
    here = local_addresses()
    for wanted in interfaces:
        for one in here:
            if one.fits(wanted):
                return one.address
    raise InvalidArgument(
        what=f"no address of this machine fits interfaces= (MULTIWORLD_INTERFACES) {','.join(interfaces)!r}",
        cause="this machine has "
        + (", ".join(f"{one.interface} {one.address}" for one in here) or "no interfaces that are up"),
        remedy="name an interface of this machine, or the network that it is in",
    )


def _network(wanted: str) -> _Network | None:
    """The network that is meant, a single address included; None if it is something else."""
    try:
        return ipaddress.ip_network(wanted, strict=False)
    except ValueError:
        return None
