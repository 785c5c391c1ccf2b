"""The network's settings, from arguments or the environment, this machine's addresses, and listeners that fit both."""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from multiworld.config import NetworkSettings
from multiworld.errors import InvalidArgument, RendezvousError
from multiworld.transport.sockets import BACKLOG, made

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
    *(("next", ctypes.POINTER(_IfAddrs)), ("name", ctypes.c_char_p), ("flags", ctypes.c_uint)),
    *((name, ctypes.c_void_p) for name in ("addr", "netmask", "other", "data")),
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


SECRET, PORTS, INTERFACES = "MULTIWORLD_SECRET", "MULTIWORLD_PORTS", "MULTIWORLD_INTERFACES"
#: ``tcp``: data goes to members on this host as it goes to others
SAME_HOST = "MULTIWORLD_SAME_HOST"


def network_settings(
    secret: str | bytes | None = None,
    ports: str | range | None = None,
    interfaces: str | Iterable[str] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> NetworkSettings:
    """Put the settings together; those that are None come from the environment.

    Args:
        secret: known to all members; ``MULTIWORLD_SECRET``.
        ports: that our listeners may have, such as ``"29600-29699"``; ``MULTIWORLD_PORTS``.
        interfaces: names or networks, the first that fits is taken; ``MULTIWORLD_INTERFACES``, separated by commas.

    Raises:
        InvalidArgument: a value that cannot be right; the secret itself is never in the message.
    """
    return NetworkSettings(
        _secret(environment.get(SECRET) if secret is None else secret),
        _ports(environment.get(PORTS) or None if ports is None else ports),
        _interfaces(environment.get(INTERFACES, "") if interfaces is None else interfaces),
        _same_host(environment.get(SAME_HOST, "")),
    )


def _same_host(value: str) -> bool:
    if value not in ("", "tcp"):
        raise InvalidArgument(
            what=f"{SAME_HOST} is {value!r}",
            cause="there is no such way to members on the same host",
            remedy="unset it, or set it to 'tcp'",
        )
    return not value


def _interfaces(value: object) -> tuple[str, ...]:
    listed = value.split(",") if isinstance(value, str) and value else value or ()
    given = tuple(listed) if isinstance(listed, Iterable) else (listed,)
    if not all(isinstance(one, str) for one in given):
        raise InvalidArgument(
            what=f"interfaces= ({INTERFACES}) is {value!r}",
            remedy='pass names or networks as text, such as "eth0" or ("eth0", "10.0.0.0/8")',
        )
    names = tuple(one.strip() for one in given)
    for wanted in names:
        if not wanted or wanted.split() != [wanted] or ("/" in wanted and _network(wanted) is None):
            raise InvalidArgument(
                what=f"{wanted!r} in interfaces= (MULTIWORLD_INTERFACES) is neither an interface nor a network",
                remedy='name interfaces or networks, such as "eth0,10.0.0.0/8,fd00::/8"',
            )
    return names


def _secret(value: object) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, (str, bytes)):
        raise InvalidArgument(
            what=f"secret= ({SECRET}) is of type {type(value).__name__}", remedy="pass it as text or bytes"
        )
    if not value:
        raise InvalidArgument(
            what=f"secret= ({SECRET}) is empty",
            cause="a variable of the launcher is not set",
            remedy="pass text or bytes that only the members know, or leave the setting out",
        )
    return value.encode(errors="surrogateescape") if isinstance(value, str) else bytes(value)


def _ports(value: object) -> range | None:
    if value is None:
        return None
    found = _range_of(value) if isinstance(value, str) else value
    if not isinstance(found, range) or not found or min(found) < 1 or max(found) > 65535:
        raise InvalidArgument(
            what=f"ports= ({PORTS}) is {value!r}",
            cause="this is not a range of ports between 1 and 65535",
            remedy='pass one such as "29600-29699", or range(29600, 29700)',
        )
    return found


def _range_of(text: str) -> range | None:
    """The ports that ``text`` names, both ends included; None if it names none."""
    first, dash, last = text.partition("-")
    try:
        return range(int(first), int(last if dash else first) + 1)
    except ValueError:
        return None


def listen(host: str, port: int, network: NetworkSettings, backlog: int = BACKLOG) -> socket.socket:
    """A listening socket, bound to ``host`` only. Blocks only where ``host`` is a name that has to be looked up.

    Args:
        host: local address or name; IPv6 too, a link-local one with its scope as in ``fe80::1%eth0``. ``"::"`` is all
            addresses of this machine, those of IPv4 as well where the kernel can do both.
        port: TCP port; 0 takes a free one, of ``network.ports`` where they are set.

    Raises:
        InvalidArgument: a link-local address that does not say on which interface.
        RendezvousError: no port of ``network.ports`` is free.
        OSError: the address is not of this machine, or a port given is in use.
    """
    if _lacks_scope(host):
        raise InvalidArgument(
            what=f"the link-local address {host!r} does not say on which interface",
            remedy=f'add its name, as in "{host}%eth0", or use another address',
        )
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    both = host == "::" and socket.has_dualstack_ipv6()
    if port or network.ports is None:
        return made(socket.create_server, address, family=family, backlog=backlog, dualstack_ipv6=both)
    for candidate in network.ports:
        try:
            place = (address[0], candidate, *address[2:])
            return made(socket.create_server, place, family=family, backlog=backlog, dualstack_ipv6=both)
        except OSError as error:  # noqa: PERF203 - a port in use is why there is a loop
            if error.errno != errno.EADDRINUSE:
                raise
    first, last = min(network.ports), max(network.ports)
    busy = f"port {first} is in use" if first == last else f"the ports {first}-{last} are all in use"
    raise RendezvousError(
        what=f"{busy} at {host}",
        cause=f"ports= ({PORTS}) allows only these, and other programs or processes of this job use them",
        remedy="allow more ports: each process needs one, and one more for each store that it hosts",
    )


def _lacks_scope(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return isinstance(address, ipaddress.IPv6Address) and address.is_link_local and address.scope_id is None
