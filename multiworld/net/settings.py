"""The network's settings, from arguments or the environment, and listeners that keep to them."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Iterable, Mapping
from typing import NoReturn

from multiworld.config import NetworkSettings, printed
from multiworld.errors import InvalidArgument, RendezvousError
from multiworld.net.interfaces import check_interfaces

SECRET, PORTS, INTERFACES = "MULTIWORLD_SECRET", "MULTIWORLD_PORTS", "MULTIWORLD_INTERFACES"


def network_settings(
    secret: str | bytes | None = None,
    ports: str | range | None = None,
    interfaces: str | Iterable[str] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> NetworkSettings:
    """Put the settings together; what is None is read from the environment.

    Args:
        secret: known to all members; ``MULTIWORLD_SECRET``.
        ports: that our listeners may have, such as ``"29600-29699"``; ``MULTIWORLD_PORTS``.
        interfaces: names or networks, the first that fits is taken; ``MULTIWORLD_INTERFACES``, separated by commas.
        environment: where variables are looked up.

    Raises:
        InvalidArgument: a value that cannot be right; the secret itself is never in the message.
    """
    wanted = environment.get(INTERFACES, "") if interfaces is None else interfaces
    given = tuple(wanted.split(",") if isinstance(wanted, str) else wanted) if wanted else ()
    if not all(isinstance(one, str) for one in given):
        raise InvalidArgument(what=f"interfaces= is {interfaces!r}", remedy="pass names or networks as text")
    names = tuple(one.strip() for one in given)
    check_interfaces(names)
    return NetworkSettings(
        _secret(environment.get(SECRET) if secret is None else secret),
        _ports(environment.get(PORTS) or None if ports is None else ports),
        names,
    )


def _secret(value: object) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, (str, bytes)) or not value:
        raise InvalidArgument(
            what=f"secret= ({SECRET}) is " + ("empty" if value in ("", b"") else f"of type {type(value).__name__}"),
            cause="a variable of the launcher is not set, most likely",
            remedy="pass text or bytes that only the members know, or leave it out altogether",
        )
    return value.encode(errors="surrogateescape") if isinstance(value, str) else bytes(value)


def _ports(value: object) -> range | None:
    if value is None:
        return None
    if isinstance(value, str):
        first, dash, last = value.partition("-")
        try:
            value = range(int(first), int(last if dash else first) + 1)
        except ValueError:
            _refuse_ports(value)
    if not isinstance(value, range) or not value or min(value) < 1 or max(value) > 65535:
        _refuse_ports(value)
    return value


def _refuse_ports(value: object) -> NoReturn:
    raise InvalidArgument(
        what=f"ports= ({PORTS}) is {value!r}",
        cause="it is no range of ports from 1 to 65535",
        remedy='pass one such as "29600-29699", or range(29600, 29700)',
    ) from None


def listen(host: str, port: int, network: NetworkSettings, backlog: int = 1024) -> socket.socket:
    """A listening socket, bound to ``host`` only. Blocks only where ``host`` is a name that has to be looked up.

    Args:
        host: local address or name; IPv6 too, a link-local one with its scope as in ``fe80::1%eth0``. ``"::"`` is all
            addresses of this machine, those of IPv4 as well where the kernel can do both.
        port: TCP port; 0 takes a free one, of ``network.ports`` where they are set.
        network: settings.
        backlog: connections that may wait for being accepted.

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
        return socket.create_server(address, family=family, backlog=backlog, dualstack_ipv6=both)
    for candidate in network.ports:
        try:
            place = (address[0], candidate, *address[2:])
            return socket.create_server(place, family=family, backlog=backlog, dualstack_ipv6=both)
        except OSError as error:  # noqa: PERF203 - a port in use is why there is a loop
            if error.errno != errno.EADDRINUSE:
                raise
    first, last = min(network.ports), max(network.ports)
    raise RendezvousError(
        what=f"none of the ports {first}-{last} is free at {printed(host, 0).removesuffix(':0')}",
        cause=f"ports= ({PORTS}) allows {len(network.ports)} ports here, and all of them are in use",
        remedy="allow more ports; each process has one listener, and one more for each store that it hosts",
    )


def _lacks_scope(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return isinstance(address, ipaddress.IPv6Address) and address.is_link_local and address.scope_id is None
