"""Only the sockets of one backend instance are shut down, never one of somebody else's."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

import pytest

from multiworld.backends import gloo_sockets


def _published(listener: socket.socket, size: int) -> bytes:
    """A value as a backend publishes it: numbers beside the address it listens on."""
    host, port = listener.getsockname()
    address = struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(host) + bytes(8)
    return struct.pack("=q", size) + address


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(5)
        yield made


def _shut(sock: socket.socket) -> bool:
    with contextlib.suppress(BrokenPipeError):
        sock.send(b"x")
        return False
    return True


def test_both_ends_of_its_connections_are_shut_down(listener: socket.socket) -> None:
    with socket.create_connection(listener.getsockname()) as ours, listener.accept()[0] as theirs:
        assert gloo_sockets.shut_down([_published(listener, 2)], []) == 1
        assert _shut(theirs)
        assert gloo_sockets.remaining([], [_published(listener, 2)]) == 1
        assert gloo_sockets.shut_down([], [_published(listener, 2)]) == 1
        assert _shut(ours)


def test_a_socket_on_its_way_to_be_connected_is_nobodys(listener: socket.socket) -> None:
    with socket.socket() as connecting:
        assert gloo_sockets.shut_down([_published(listener, 2)], [_published(listener, 2)]) == 0
        connecting.bind(("127.0.0.1", 0))
        assert gloo_sockets.shut_down([_published(listener, 2)], [_published(listener, 2)]) == 0
        connecting.connect(listener.getsockname())
        assert not _shut(connecting)


def test_the_listener_stays(listener: socket.socket) -> None:
    assert gloo_sockets.shut_down([_published(listener, 2)], []) == 0
    with socket.create_connection(listener.getsockname(), timeout=5), listener.accept()[0]:
        pass
