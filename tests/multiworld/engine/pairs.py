"""Two compiled engines of one process, joined by a socket pair, and the calls that tests make of them."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from multiworld.matching.protocol import CODES
from tests.multiworld.engine.reference.frames import HEADER

SECONDS = 30.0

PENDING, DONE, MISMATCH, ENDED = range(4)

LOST, LANE_ENDED, BYE, VALUE, OWED = range(5)


class Two:
    """Engines 0 and 1, or engine 0 and a bare socket in the place of its peer."""

    def __init__(self, native: ModuleType, *, bare: bool = False) -> None:
        ours, theirs = socket.socketpair()
        self.lane = ours.detach()
        self.a = native.Engine(0, {1: self.lane}, 1 << 20)
        self.peer = theirs if bare else None
        self.b = None if bare else native.Engine(1, {0: theirs.detach()}, 1 << 20)

    def run(self, *functions: Callable[[], Any]) -> list[Any]:
        """Run each in a thread of its own; what they return."""
        results: list[Any] = [None] * len(functions)

        def work(place: int) -> None:
            results[place] = functions[place]()

        threads = [threading.Thread(target=work, args=(place,), daemon=True) for place in range(len(functions))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
            assert not thread.is_alive()
        return results


def start_send(engine: Any, peer: int, key: int, tensor: torch.Tensor) -> int:
    return engine.start((False, False, peer, key, 0, CODES[tensor.dtype], tensor.nbytes, tensor.data_ptr(), None))  # type: ignore[no-any-return]


def start_recv(engine: Any, peer: int, key: int, tensor: torch.Tensor) -> int:
    return engine.start((True, False, peer, key, 0, CODES[tensor.dtype], tensor.nbytes, tensor.data_ptr(), None))  # type: ignore[no-any-return]


def send(engine: Any, peer: int, key: int, tensor: torch.Tensor, seconds: float) -> Any:
    return _over(engine, start_send(engine, peer, key, tensor), seconds)


def recv(engine: Any, peer: int, key: int, tensor: torch.Tensor, seconds: float) -> Any:
    return _over(engine, start_recv(engine, peer, key, tensor), seconds)


def _over(engine: Any, number: int, seconds: float) -> Any:
    """The outcome of an operation; one that is late is withdrawn."""
    outcome = engine.wait(number, seconds)
    engine.take(number)
    engine.withdraw(number)
    return outcome


def frame(kind: int, dtype: int = 0, flags: int = 0, seq: int = 0, key: int = 0, nbytes: int = 0) -> bytes:
    return HEADER.pack(kind, dtype, flags, seq, key, nbytes)


def events_of(engine: Any) -> list[tuple[Any, ...]]:
    """The events of an engine whose lanes have been moved, at least one."""
    assert select.select([engine.eventful()], [], [], SECONDS)[0]
    return engine.events()  # type: ignore[no-any-return]


def exchange(engine: Any, receives: bool, peer: int, tensor: torch.Tensor, seconds: float) -> tuple[Any, int]:
    """Exchange a message of key 7; its outcome and number."""
    number = [0]
    return engine.exchange(number, receives, peer, 7, tensor, None, seconds), number[0]


MARK = bytes(range(32))
