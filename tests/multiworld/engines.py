"""Members whose engines talk over sockets of one process, by a clock that stands still: bytes move when a test says so.

net = Network(3)
receive, got = net.recv(0, 1)
net.send(1, 5.0)
net.move_until(lambda: receive.done)
"""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import torch

from multiworld.engine import library
from multiworld.engine.engine import Compiled, Engine
from multiworld.errors import BrokenWorldException, LossReason, OpTimeout, PeerLost
from multiworld.matching.membership import GroupMembers, Membership
from multiworld.matching.operation import Launch, Operation
from multiworld.matching.protocol import ranks_of_channel
from multiworld.operations import p2p
from multiworld.session.bridge import Bridge
from multiworld.transport.reactor import Reactor
from tests.multiworld.engine.reference.frames import HEADER

OP_TIMEOUT = 6.0
MOST_ROUNDS = 10_000


class Clock:
    """Monotonic seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class NoHub:
    """No thread does anything here: a test does."""

    def call(self, function: Callable[[], None]) -> None:
        """Forget it."""

    def alarm(self, function: Callable[[float], None], due: float) -> None:
        """Forget it."""


class Wire:
    """The connection of a member to one peer: what a test writes on it is what no engine of ours would."""

    def __init__(self, member: Member, peer: int, sock: socket.socket) -> None:
        self._member, self._peer, self._sock = member, peer, sock.dup()
        self._written = 0

    def put(
        self,
        kind: int,
        dtype: int = 0,
        flags: int = 0,
        seq: int = 0,
        key: int = 0,
        payload: tuple[bytes, ...] = (),
        nbytes: int = 0,
    ) -> None:
        """Write a frame behind all that the engine has written."""
        self.write(HEADER.pack(kind, dtype, flags, seq, key, nbytes) + b"".join(payload))

    def write(self, data: bytes) -> None:
        """The same with frames that are packed already."""
        self._sock.sendall(data)
        self._written += len(data)

    @property
    def sent(self) -> int:
        return cast("int", self._member.traffic()[self._peer][0]) + self._written

    @property
    def received(self) -> int:
        return cast("int", self._member.traffic()[self._peer][1])


class Member:
    """One engine with its connections, and all that it asks of its session, noted down.

    Attributes:
        wires: to the other members, by rank.
        alarms: the times at which it asked for a look at the deadlines.
        launched: collectives that are agreed on.
    """

    lock: Any

    def __init__(self, rank: int, size: int, clock: Clock, socks: dict[int, socket.socket]) -> None:
        us = Membership("w", rank, size, 1, "gloo", OP_TIMEOUT, 1 << 20)
        self.lock = threading.RLock()
        self.hub = cast("Reactor", NoHub())
        self.wires = {peer: Wire(self, peer, sock) for peer, sock in socks.items()}
        native = library.module().Engine(rank, {peer: sock.detach() for peer, sock in socks.items()}, 1 << 20)
        self.native = native
        self.engine = Engine(us, self, self.lock, clock, native)
        self.bridge = Bridge(self, self.engine)
        self.group = _group(us)
        self.alarms: list[float] = []
        self.launched: list[Operation] = []
        self.departures: list[int] = []

    @property
    def failure(self) -> BrokenWorldException | None:
        return self.engine.failure

    def traffic(self) -> dict[int, tuple[int, int]]:
        return cast("dict[int, tuple[int, int]]", self.native.traffic())

    def flush(self) -> None:
        """Write what its connections take."""
        self.native.flush()

    def pump(self, peer: int) -> None:
        """Read what has come from ``peer``, and act on it."""
        self.bridge.drain(peer)
        self.bridge.act()

    def tick(self, now: float) -> None:
        """Do what the session does when its alarm rings."""
        late = self.engine.overdue(now)
        if late is not None:
            self.end(OpTimeout("w", f"{late.name} was waiting for {late.waiting_for()}", timeout=late.timeout))

    def end(self, error: BrokenWorldException) -> None:
        """Do what the session does when it breaks."""
        if self.engine.failure is None:
            self.engine.failure = error
            self.bridge.stop(orderly=False)
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

    def abort(self, reason: str) -> None:
        raise AssertionError(f"aborted: {reason}")

    def interrupted(self, what: str) -> None:
        raise AssertionError(f"interrupted while {what}")

    def on_value(self, peer: int, gid: int, name: bytes, value: bytes) -> None:
        raise AssertionError(f"rank {peer} sets up a backend for group {gid}: {name!r} is {value!r}")

    def on_bye(self, peer: int, *, gives_up: bool) -> None:
        self.departures.append(peer)
        if not self.engine.depart(peer, gives_up=gives_up):
            self.lost(peer, LossReason.LEFT, f"rank {peer} left the world")

    def lane_ended(self, peer: int, error: OSError | None) -> None:
        raise AssertionError(f"the stream of rank {peer} ended: {error}")


def _group(us: Membership) -> GroupMembers:
    made = GroupMembers()
    made.member = SimpleNamespace(  # type: ignore[assignment]
        name=us.name, world_rank=us.rank, generation=us.generation, torch_device=torch.device("cpu")
    )
    made.ranks, made.gid, made.digest = tuple(range(us.size)), 0, 0
    return made


class Network:
    """Members whose operations are started without waiting, and whose bytes move only when told to.

    Args:
        capacity: about how many bytes a connection holds; the kernel's least is some thousand.
    """

    member: type[Member] = Member

    def __init__(self, size: int, capacity: int = 1 << 20) -> None:
        self.clock = Clock()
        socks: list[dict[int, socket.socket]] = [{} for _ in range(size)]
        for one in range(size):
            for other in range(one):
                pair = socket.socketpair()
                for sock in pair:
                    sock.setblocking(False)
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, capacity)
                socks[one][other], socks[other][one] = pair
        self.members = [self.member(rank, size, self.clock, socks[rank]) for rank in range(size)]

    def start(self, rank: int, starter: Callable[..., Any], *args: Any) -> Any:
        """Start an operation at ``rank``."""
        started = starter(self.members[rank].engine, self.members[rank].group, *args)
        self.look()
        return started

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
        self.look()

    def move(self, to: int, of: int) -> None:
        """Let ``of`` write what it can, and ``to`` read what has come from it."""
        self.members[of].flush()
        self.members[to].pump(of)
        self.look()

    def look(self) -> None:
        """Let all who wait look whether it is done."""
        for member in self.members:
            with member.lock:
                for operation in tuple(member.engine.operations):
                    if isinstance(operation, Compiled):
                        operation.settle()

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
        """Move all lanes until nothing is on its way any more, but to who has ended."""
        wires = [member.wires for member in self.members]

        def all_came() -> bool:
            over = [member.failure is not None for member in self.members]
            pairs = [(to, of) for to, of in self.pairs() if not over[to]]
            return all(wires[to][of].received == wires[of][to].sent for to, of in pairs)

        self.move_until(all_came)

    def failures(self) -> list[BrokenWorldException]:
        """Return what broke the members."""
        return [member.failure for member in self.members if member.failure is not None]


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
            kept = [peer for peer in (1, 2) if self.table.members[0].native.keeps(peer, 0)]
            unsent = [rank for rank, operation in self.sends if not operation.done] + kept
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
