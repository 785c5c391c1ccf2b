"""The network's settings, from arguments or the environment, and listeners that keep to them."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Iterable, Mapping

from multiworld.config import NetworkSettings
from multiworld.errors import InvalidArgument, RendezvousError
from multiworld.transport.interfaces import check_interfaces
from multiworld.transport.sockets import made

SECRET, PORTS, INTERFACES = "MULTIWORLD_SECRET", "MULTIWORLD_PORTS", "MULTIWORLD_INTERFACES"


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
    )


def _interfaces(value: object) -> tuple[str, ...]:
    listed = value.split(",") if isinstance(value, str) and value else value or ()
    given = tuple(listed) if isinstance(listed, Iterable) else (listed,)
    if not all(isinstance(one, str) for one in given):
        raise InvalidArgument(
            what=f"interfaces= ({INTERFACES}) is {value!r}",
            remedy='pass names or networks as text, such as "eth0" or ("eth0", "10.0.0.0/8")',
        )
    names = tuple(one.strip() for one in given)
    check_interfaces(names)
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


def listen(host: str, port: int, network: NetworkSettings, backlog: int = 1024) -> socket.socket:
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
