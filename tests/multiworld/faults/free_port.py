"""A port for programs that want to be told one."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A TCP port of the loopback that nobody has at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
