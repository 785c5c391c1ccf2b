"""Large payloads over TCP: who waits is woken by a turn's worth at once, and by each of the last bytes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import pytest
import torch
from engine.pairs import DONE, MARK, PENDING, SECONDS, frame, start_recv

from multiworld.matching.protocol import CODES
from tests.multiworld.engine.reference.frames import HEADER, HEADER_BYTES, Kind

MEGABYTE, TURN = 1 << 20, 1 << 18
LARGE = 4 * MEGABYTE
_CODE = CODES[torch.uint8]


class Peer:
    """Engine 0 on TCP, and a bare socket in the place of its peer."""

    def __init__(self, native: ModuleType) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.sock = socket.create_connection(listener.getsockname(), SECONDS)
            self.lane, _ = listener.accept()
        self._writer = ThreadPoolExecutor(1)
        self.native, self.engine = native, native.Engine(0, {1: self.lane.dup().detach()}, 1 << 20)

    def begins(self, tensor: torch.Tensor, length: int) -> int:
        """Send so much of a message that a receive waits for, and let the engine read of it; the receive's number."""
        number = start_recv(self.engine, 1, 7, tensor)
        self.says(frame(Kind.DATA, _CODE, seq=self.posted(), key=7, nbytes=tensor.nbytes) + bytes(length))
        while self.engine.traffic()[1][1] <= length - TURN:  # less than a turn may rest in the socket
            assert self.engine.wait(number, 0.01)[0] == PENDING
        return number

    def says(self, what: bytes) -> None:
        """Send, while the engine reads."""
        self._writer.submit(self.sock.sendall, what)

    def posted(self) -> int:
        """The number of the next receive that is posted."""
        kind, _, _, seq, _, _ = HEADER.unpack(self.sock.recv(HEADER_BYTES, socket.MSG_WAITALL))
        assert kind == Kind.POST
        return int(seq)

    def goes_on(self) -> None:
        """Let another engine have the connection."""
        self.engine.end(False)
        kept = self.engine.shut((1,))
        self.engine.part_with(tuple(kept.values()), False)
        self.engine = self.native.Engine(0, kept, 1 << 20)
        self.engine.begin_at((1,), MARK)

    @property
    def wakes_at(self) -> int:
        return self.lane.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)

    def close(self) -> None:
        self.engine.end(False)
        self._writer.shutdown()
        self.sock.close()
        self.lane.close()


@pytest.fixture
def peer(native: ModuleType) -> Iterator[Peer]:
    made = Peer(native)
    yield made
    made.close()


def test_the_last_bytes_of_a_large_payload_are_read_as_they_come(peer: Peer) -> None:
    got = torch.ones(LARGE, dtype=torch.uint8)
    number = peer.begins(got, 2 * MEGABYTE)
    assert peer.wakes_at == TURN
    peer.says(bytes(2 * MEGABYTE - 1))
    while peer.wakes_at > 1:
        assert peer.engine.wait(number, 0.01)[0] == PENDING
    peer.says(bytes(1))
    assert peer.engine.wait(number, SECONDS)[0] == DONE
    assert not got.any()


def test_a_payload_that_nobody_wants_any_more_holds_up_no_other_message(peer: Peer) -> None:
    peer.engine.withdraw(peer.begins(torch.zeros(LARGE, dtype=torch.uint8), MEGABYTE))
    got = torch.zeros(1, dtype=torch.uint8)
    number = start_recv(peer.engine, 1, 8, got)
    said = bytes(LARGE - MEGABYTE) + frame(Kind.DATA, _CODE, seq=peer.posted(), key=8, nbytes=1) + b"\x05"
    peer.says(said)
    assert peer.engine.wait(number, SECONDS)[0] == DONE
    assert got.item() == 5


def test_the_next_engine_of_a_connection_is_woken_by_little(peer: Peer) -> None:
    """It goes on in the middle of a payload, of which no more comes."""
    peer.begins(torch.zeros(LARGE, dtype=torch.uint8), MEGABYTE)
    peer.goes_on()
    assert peer.wakes_at == 1
    got = torch.zeros(1, dtype=torch.uint8)
    number = start_recv(peer.engine, 1, 8, got)
    peer.sock.recv(len(MARK), socket.MSG_WAITALL)
    peer.says(MARK + frame(Kind.DATA, _CODE, seq=peer.posted(), key=8, nbytes=1) + b"\x05")
    assert peer.engine.wait(number, SECONDS)[0] == DONE
    assert got.item() == 5
