"""A port for programs that want to be told one."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

_FIRST, _TRIES = 10_000, 100


def free_port() -> int:
    """A TCP port that nobody has at the moment, below those that the kernel gives to whoever asks for any.

    So only a program that is told the same number takes it before the caller's program does.
    """
    end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = range(_FIRST, end if end - _FIRST >= _TRIES else 65_536)  # a tuned machine may give out nearly all
    for port in random.SystemRandom().sample(ports, _TRIES):
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port
    raise AssertionError(f"none of {_TRIES} ports from {ports[0]} to {ports[-1]} is free")
