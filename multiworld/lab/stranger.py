"""A stranger who connects to every port of a worker, says little or nonsense, and stays."""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import dataclass
from pathlib import Path

#: what the stranger says, in turn; the first says nothing
_WORDS = (b"", b"\x00", b"{", b"[" * 4095, b'{"world": 1}\n', b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)))
_CONNECTIONS = 40
_LISTENING = "0A"


@dataclass(frozen=True, slots=True)
class Visit:
    """What a stranger did: the ports that listened, and how many connections it had."""

    ports: tuple[int, ...]
    connections: int


def listening_ports(pid: int) -> dict[int, str]:
    """TCP ports on which a process listens, and the local IPv4 address of each; see proc_pid_net(5)."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(str(entry.readlink()).removeprefix("socket:[").removesuffix("]"))
    found = {}
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == _LISTENING and fields[9] in inodes:
            host, port = fields[1].split(":")
            found[int(port, 16)] = socket.inet_ntoa(bytes.fromhex(host)[::-1])
    return found


def visit(pid: int, seconds: float) -> Visit:
    """Connect to all ports of process ``pid`` and stay for ``seconds``."""
    ports = listening_ports(pid)
    until = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        made = 0
        for number in range(_CONNECTIONS):
            for port, host in ports.items():
                with contextlib.suppress(OSError):  # refused, or dropped by a filter
                    sock = stack.enter_context(socket.create_connection((host, port), timeout=0.2))
                    made += 1
                    sock.sendall(_WORDS[number % len(_WORDS)])
            if time.monotonic() > until:
                break
        time.sleep(max(0.0, until - time.monotonic()))
    return Visit(tuple(ports), made)
