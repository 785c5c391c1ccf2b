"""Engines that talk over memory, by a clock that stands still: every crossing, deadline and loss happens each time.

net = Network(3)
receive, got = net.recv(0, 1)
net.send(1, 5.0)
net.move_until(lambda: receive.done)
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from multiworld.errors import BrokenWorldException, LossReason, OpTimeout, PeerLost
from multiworld.matching.engine import Engine
from multiworld.matching.membership import GroupMembers, Limits, Membership
from multiworld.matching.operation import Launch, Operation
from multiworld.matching.protocol import ranks_of_channel
from multiworld.operations import p2p
from multiworld.transport.lane import Lane

OP_TIMEOUT = 6.0
MOST_ROUNDS = 10_000


class Clock:
    """Monotonic seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class MemorySocket:
    """One end of a stream in memory that takes ``capacity`` bytes until the other end reads.

    Attributes:
        writes: how many bytes each write had.
    """

    def __init__(self, capacity: int) -> None:
        self.writes: list[int] = []
        self._capacity = capacity
        self._unread = bytearray()
        self.other = self

    @classmethod
    def pair(cls, capacity: int) -> tuple[MemorySocket, MemorySocket]:
        one, other = cls(capacity), cls(capacity)
        one.other, other.other = other, one
        return one, other

    def setblocking(self, _: bool) -> None:
        """It never blocks."""

    def fileno(self) -> int:
        return -1

    def send(self, data: Any) -> int:
        room = self._capacity - len(self.other._unread)
        if room <= 0:
            raise BlockingIOError
        taken = bytes(memoryview(data).cast("B")[:room])
        self.other._unread += taken
        self.writes.append(len(taken))
        return len(taken)

    def sendmsg(self, parts: Any) -> int:
        return self.send(b"".join(bytes(part) for part in parts))

    def recv_into(self, target: memoryview) -> int:
        if not self._unread:
            raise BlockingIOError
        count = min(len(target), len(self._unread))
        target[:count] = self._unread[:count]
        del self._unread[:count]
        return count


class Member:
    """One engine with its lanes, and all that it asks of its host, noted down.

    Attributes:
        socks: to the other members, by rank.
        alarms: the times at which it asked for a look at the deadlines.
        launched: collectives that are agreed on.
    """

    def __init__(self, rank: int, size: int, clock: Clock, socks: dict[int, MemorySocket]) -> None:
        us = Membership("w", rank, size, 1, "gloo", Limits(OP_TIMEOUT, 1 << 20))
        self.socks = socks
        self.lanes = {peer: Lane(sock, peer, self) for peer, sock in socks.items()}  # type: ignore[arg-type]
        self.engine = Engine(us, self, self.lanes, contextlib.nullcontext(), clock)
        self.on_frame = self.engine.on_frame
        self.group = _group(us)
        self.alarms: list[float] = []
        self.launched: list[Operation] = []
        self.departures: list[int] = []

    def tick(self, now: float) -> None:
        """Do what the session does when its alarm rings."""
        late = self.engine.overdue(now)
        if late is not None:
            self.end(OpTimeout("w", f"{late.name} was waiting for {late.waiting_for()}", timeout=late.timeout))

    def end(self, error: BrokenWorldException) -> None:
        """Do what the session does when it breaks."""
        if self.engine.failure is None:
            self.engine.failure = error
            for lane in self.lanes.values():
                lane.cut()
            self.engine.end(error)

    def lost(self, peer: int, how: LossReason, what: str) -> None:
        self.end(PeerLost("w", what, ranks=(peer,), how=how))

    def set_alarm(self) -> None:
        self.alarms.append(self.engine.next_look)

    def launch(self, number: int, launch: Launch) -> None:
        assert ranks_of_channel(number) is None, "a transfer on a device, where there is none"
        assert launch.operation is not None
        self.launched.append(launch.operation)

    def aside(self, function: Callable[[], None]) -> None:
        raise AssertionError(f"{function} needs a thread")

    def value_slot(self, peer: int, gid: int, split: int, nbytes: int) -> None:
        raise AssertionError(f"rank {peer} sets up a backend for group {gid}: {split} of {nbytes} bytes")

    def on_bye(self, peer: int, *, gives_up: bool) -> None:
        self.departures.append(peer)
        if not self.engine.depart(peer, gives_up=gives_up):
            self.lost(peer, LossReason.LEFT, f"rank {peer} left the world")

    def on_lane_end(self, lane: Lane, error: OSError | None) -> None:
        raise AssertionError(f"the stream of rank {lane.peer} ended: {error}")

    def on_torn(self, lane: Lane) -> None:
        raise AssertionError(f"the stream of rank {lane.peer} is torn")

    def on_backlog(self, lane: Lane) -> None:
        """The test flushes."""


def _group(us: Membership) -> GroupMembers:
    made = GroupMembers()
    made.member = SimpleNamespace(  # type: ignore[assignment]
        name=us.name, world_rank=us.rank, generation=us.generation, torch_device=torch.device("cpu")
    )
    made.ranks, made.gid, made.digest = tuple(range(us.size)), 0, 0
    return made


class Network:
    """Members whose operations are started without waiting, and whose bytes move only when told to."""

    member: type[Member] = Member

    def __init__(self, size: int, capacity: int = 1 << 20) -> None:
        self.clock = Clock()
        socks: list[dict[int, MemorySocket]] = [{} for _ in range(size)]
        for one in range(size):
            for other in range(one):
                socks[one][other], socks[other][one] = MemorySocket.pair(capacity)
        self.members = [self.member(rank, size, self.clock, socks[rank]) for rank in range(size)]

    def start(self, rank: int, starter: Callable[..., Any], *args: Any) -> Any:
        """Start an operation at ``rank``."""
        return starter(self.members[rank].engine, self.members[rank].group, *args)

    def recv(self, rank: int, src: int | None) -> tuple[Any, torch.Tensor]:
        """Start a receive at ``rank``."""
        got = torch.zeros(1)
        return self.start(rank, p2p.recv, got, src, 0), got

    def send(self, rank: int, value: float, dst: int = 0) -> Any:
        """Start a send at ``rank``."""
        return self.start(rank, p2p.send, torch.tensor([value]), dst, 0)

    def withdraw(self, operation: Operation) -> None:
        """Cancel it, as its waiter does."""
        operation.withdraw()

    def move(self, to: int, of: int) -> None:
        """Let ``of`` write what it can, and ``to`` read what has come from it."""
        self.members[of].lanes[to].flush()
        self.members[to].lanes[of].pump()

    def pairs(self) -> list[tuple[int, int]]:
        """All directions: to whom, of whom."""
        ranks = range(len(self.members))
        return [(to, of) for to in ranks for of in ranks if to != of]

    def move_until(self, condition: Callable[[], bool], *lanes: tuple[int, int]) -> None:
        """Move these lanes, or all, until the condition holds."""
        for _ in range(MOST_ROUNDS):
            if condition():
                return
            for to, of in lanes or self.pairs():
                self.move(to, of)
        raise AssertionError("it does not get done")

    def settle(self) -> None:
        """Move all lanes until nothing is on its way any more."""
        lanes = [member.lanes for member in self.members]
        self.move_until(lambda: all(lanes[to][of].received == lanes[of][to].sent for to, of in self.pairs()))

    def kept(self) -> list[int]:
        """Of whom messages lie ready at rank 0, one entry for each."""
        boxes = self.members[0].engine.messages
        return [peer for peer, box in boxes.items() for kept in box.kept.values() for _ in kept]

    def asked(self, rank: int) -> bool:
        """Return whether a receive from any source of rank 0 is known at ``rank``."""
        return any(self.members[rank].engine.messages[0].any_posts.values())

    def failures(self) -> list[BrokenWorldException]:
        """Return what broke the members."""
        return [member.engine.failure for member in self.members if member.engine.failure is not None]


class Traffic:
    """Random receives at rank 0 and sends of the others, and what of it still waits."""

    def __init__(self, table: Network, draw: random.Random, withdrawals: bool) -> None:
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
