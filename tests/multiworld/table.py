"""All members of a world in one process, their frames moved by hand, so that every crossing happens each time.

with members(store, 2) as (worlds, pool):
    table = Table(worlds)
    receive, got = table.recv(0, 1)
    table.send(1, 5.0)
    table.move_until(lambda: receive.done)
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from multiworld import MultiWorld
from multiworld.ops import p2p

OP_TIMEOUT = 6.0
SOON = 3.0  # far below the time-out of the operations


@contextlib.contextmanager
def members(store: str, size: int) -> Iterator[tuple[list[Any], ThreadPoolExecutor]]:
    """The members of a world, all in this process, and threads to act for them."""
    with ThreadPoolExecutor(size + 1) as pool, contextlib.ExitStack() as stack:
        homes = [stack.enter_context(MultiWorld()) for _ in range(size)]

        def join(rank: int) -> Any:
            return homes[rank].sync.join("w", rank, size, store=store, op_timeout=OP_TIMEOUT)

        yield list(pool.map(join, range(size))), pool


class Table:
    """Members whose operations are started without waiting, and whose frames move only when told to."""

    def __init__(self, worlds: list[Any]) -> None:
        self.worlds = worlds

    def recv(self, rank: int, src: int | None) -> tuple[Any, torch.Tensor]:
        """Start a receive at ``rank``."""
        got = torch.zeros(1)
        return p2p.recv(self.worlds[rank]._current.engine, self.worlds[rank], got, src, 0), got

    def send(self, rank: int, value: float, dst: int = 0) -> Any:
        """Start a send at ``rank``."""
        return p2p.send(self.worlds[rank]._current.engine, self.worlds[rank], torch.tensor([value]), dst, 0)

    def withdraw(self, operation: Any) -> None:
        """Cancel it, as its waiter does."""
        with operation.registry.lock:
            operation.withdraw()

    def move(self, to: int, of: int) -> None:
        """Let ``to`` read what has come from ``of``."""
        self.worlds[to]._current.bridge.drain(of)

    def move_until(self, condition: Callable[[], bool], *lanes: tuple[int, int]) -> None:
        """Move these lanes, or all, until the condition holds."""
        size = len(self.worlds)
        chosen = lanes or [(to, of) for to in range(size) for of in range(size) if to != of]
        deadline = time.monotonic() + SOON
        while not condition():
            assert time.monotonic() < deadline, "it does not get done"
            for to, of in chosen:
                self.move(to, of)

    def settle(self) -> None:
        """Move all lanes until nothing is on its way any more."""
        lanes = [world._current.lanes for world in self.worlds]
        pairs = [(to, of) for to in range(len(lanes)) for of in lanes[to]]
        self.move_until(lambda: all(lanes[to][of].received == lanes[of][to].sent for to, of in pairs))

    def kept(self) -> list[int]:
        """Of whom messages lie ready at rank 0, one entry for each."""
        boxes = self.worlds[0]._current.engine.boxes
        return [peer for peer, box in boxes.items() for kept in box.kept.values() for _ in kept]

    def asked(self, rank: int) -> bool:
        """Whether a receive from any source of rank 0 is known at ``rank``."""
        return any(self.worlds[rank]._current.engine.boxes[0].any_posts.values())


class Traffic:
    """Random receives at rank 0 and sends of the others, and what of it still waits."""

    def __init__(self, table: Table, draw: random.Random, withdrawals: bool) -> None:
        self.table = table
        self.draw = draw
        self.withdrawals = withdrawals
        self.receives: list[tuple[int | None, Any, torch.Tensor]] = []
        self.sends: list[tuple[int, Any]] = []

    def receive(self, src: int | None) -> None:
        self.receives.append((src, *self.table.recv(0, src)))

    def send(self, rank: int) -> None:
        count = sum(of == rank for of, _ in self.sends)
        self.sends.append((rank, self.table.send(rank, rank * 1000.0 + count)))

    def act(self) -> None:
        """Do something, or deliver what is on its way between two."""
        act = self.draw.randrange(6)
        if act == 2 and self.withdrawals and self.receives:
            self.table.withdraw(self.receives.pop(self.draw.randrange(len(self.receives)))[1])
        elif act == 0:
            self.receive(self.draw.choice((None, None, 1, 2)))
        elif act == 1:
            self.send(self.draw.choice((1, 2)))
        else:
            self.table.move(*self.draw.sample(range(3), 2))

    def finish(self) -> None:
        """Deliver all; what then waits has no counterpart, and is given one."""
        while True:
            self.table.settle()
            lonely = [src for src, operation, _ in self.receives if not operation.done]
            unsent = [rank for rank, operation in self.sends if not operation.done] + self.table.kept()
            assert not any(src in unsent or (src is None and unsent) for src in lonely), (lonely, unsent)
            if not lonely and not unsent:
                return
            for src in lonely:
                self.send(2 if src is None else src)
            for _ in unsent:
                self.receive(None)

    def check(self) -> None:
        """Each message came once, and, if nothing was withdrawn, those of one peer in order to receives of one kind."""
        for rank in (1, 2):
            came = [(src, int(got.item())) for src, _, got in self.receives if got.item() // 1000 == rank]
            sent = [rank * 1000 + i for i in range(sum(of == rank for of, _ in self.sends))]
            assert sorted(value for _, value in came) == sent
            for kind in () if self.withdrawals else (None, rank):
                of_kind = [value for src, value in came if src == kind]
                assert of_kind == sorted(of_kind)
