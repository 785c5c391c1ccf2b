"""What a member that has gone mad says on its control connection breaks its world, and is not passed over."""

from __future__ import annotations

import pytest
from procs import wait_until
from table import members

from multiworld import PeerLost

NESTED = b"[" * 30_000


@pytest.mark.parametrize("line", [b'{"say": "break", "ranks": [1e999]}', NESTED], ids=["infinite", "nested"])
def test_rubbish_is_a_protocol_error(store: str, line: bytes) -> None:
    with members(store, 2) as ((first, second), _):
        second._live.control._socks[0].sendall(line + b"\n")
        wait_until(lambda: first.failure is not None, 10.0, "it is passed over")
        failure = first.failure
    assert isinstance(failure, PeerLost)
    assert failure.how == "protocol"
