"""Invalid bytes on a control connection break the world; they are not passed over."""

from __future__ import annotations

import pytest
from procs import wait_until
from table import members

from multiworld import PeerLost

NESTED = b"[" * 30_000


INFINITE = b'{"say": "break", "ranks": [1e999]}\n'


@pytest.mark.parametrize("said", [INFINITE, NESTED + b"\n", b" " * 70_000], ids=["infinite", "nested", "endless"])
def test_rubbish_is_a_protocol_error(store: str, said: bytes) -> None:
    with members(store, 2) as ((first, second), _):
        sock = second.member.session.control._socks[0]
        sock.setblocking(True)
        sock.sendall(said)
        wait_until(lambda: first.failure is not None, 10.0, "it is passed over")
        failure = first.failure
    assert isinstance(failure, PeerLost)
    assert failure.how == "protocol"
