"""Engines whose backend works on a device, over memory: what is launched when, and in which order, is all seen.

net = DeviceNetwork(2)
receive, got = net.recv(1, 0)
net.send(0, 5.0, dst=1)
net.settle()          # matched, and begun on both drivers
net.run()             # the device does it
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from engines import Clock, Member, Network

from multiworld.engine.engine import Engine
from multiworld.matching.device import Moment
from multiworld.matching.operation import Launch, Operation
from multiworld.matching.protocol import ranks_of_channel
from multiworld.operations import p2p
from multiworld.session.bridge import Bridge


class Lock:
    """The registry's lock, which knows whether it is held: nothing is asked of a device under it."""

    def __init__(self) -> None:
        self.depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


class MemoryDevice:
    """A device whose tensors are those of the CPU that were not named as the CPU's own.

    Attributes:
        on_cpu: tensors that are not the device's.
        made: how much memory it was asked for.
        adopted: how many tensors of another stream were taken over.
    """

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._moments = 0
        self.on_cpu: list[torch.Tensor] = []
        self.captures = False
        self.made: list[int] = []
        self.adopted = 0

    def takes(self, tensor: torch.Tensor) -> bool:
        return not any(tensor is one for one in self.on_cpu)

    def capturing(self) -> bool:
        self._outside()
        return self.captures

    def now(self) -> Moment:
        self._outside()
        self._moments += 1
        return Moment("stream", self._moments)

    def room(self, nbytes: int, moment: Moment) -> tuple[torch.Tensor, Moment]:
        self.made.append(nbytes)
        return torch.full((nbytes,), 0xEE, dtype=torch.uint8), self._after(moment)

    def copies_of(self, tensors: Sequence[torch.Tensor], moment: Moment) -> tuple[list[torch.Tensor], Moment]:
        return [tensor.clone() for tensor in tensors], self._after(moment)

    def adopt(self, tensor: torch.Tensor, moment: Moment) -> torch.Tensor:
        self._after(moment)
        self.adopted += tensor.numel() > 0
        return tensor

    def _after(self, moment: Moment) -> Moment:
        assert moment.stream == "stream"
        return self.now()

    def _outside(self) -> None:
        assert not self._lock.depth, "a call of the device under the lock"


class Began:
    """A request to a driver."""

    def __init__(self, what: str, tensor: torch.Tensor, after: Any) -> None:
        self.what, self.tensor, self.after = what, tensor, after


class MemoryDriver:
    """Notes down what it is asked for; ``join`` says that a stream waits."""

    name, on_device = "memory", True

    def __init__(self) -> None:
        self.joined: list[Began] = []

    def send(self, tensor: torch.Tensor, peer: int, *, after: Any = None) -> Began:
        assert peer == 1
        return Began("send", tensor, after)

    def recv(self, tensor: torch.Tensor, peer: int, *, after: Any = None) -> Began:
        assert peer == 0
        return Began("recv", tensor, after)

    def all_reduce(self, tensor: torch.Tensor, op: Any, *, after: Any = None) -> Began:  # noqa: ARG002 - a sum
        return Began("all_reduce", tensor, after)

    def join(self, work: Began) -> None:
        self.joined.append(work)


class Queue:
    """A slot whose backend is there at once: what is ready begins in order."""

    def __init__(self, member: DeviceMember) -> None:
        self._member = member
        self._waiting: deque[Launch] = deque()
        self.begun: deque[Launch] = deque()

    def take(self, launch: Launch) -> None:
        self._member.engine.under_way.add(launch)
        launch.turn = self._start
        self._waiting.append(launch)
        self._start()

    def _start(self) -> None:
        while self._waiting and self._waiting[0].ready:
            launch = self._waiting.popleft()
            launch.start(self._member.driver)  # type: ignore[arg-type]
            self.begun.append(launch)


class DeviceMember(Member):
    """A member whose backend works on a device.

    Attributes:
        queues: of its backends, by the ranks that take part.
        threads: what is to be done in threads of their own.
    """

    def __init__(self, rank: int, size: int, clock: Clock, socks: dict[int, socket.socket]) -> None:
        super().__init__(rank, size, clock, socks)
        self.lock = Lock()
        self.device, self.driver = MemoryDevice(self.lock), MemoryDriver()
        self.engine = Engine(self.engine.membership, self, self.lock, clock, self.native, self.device)
        self.bridge = Bridge(self, self.engine)
        self.queues: dict[tuple[int, ...], Queue] = {}
        self.threads: list[Callable[[], None]] = []

    def launch(self, number: int, launch: Launch) -> None:
        if ranks_of_channel(number) is None:
            assert launch.operation is not None
            self.launched.append(launch.operation)
        self.queues.setdefault(launch.ranks, Queue(self)).take(launch)

    def aside(self, function: Callable[[], None]) -> None:
        self.threads.append(function)

    def begun(self, src: int, dst: int) -> list[Any]:
        """Return what has begun between these two and is not over, in order."""
        queue = self.queues.get((src, dst))
        return [] if queue is None else [launch.work for launch in queue.begun]


class DeviceNetwork(Network):
    """Members whose payloads stay on a device."""

    member = DeviceMember
    members: list[DeviceMember]  # type: ignore[assignment]

    def recv_on(self, rank: int, src: int | None, stream: bool = False) -> tuple[Any, torch.Tensor]:
        """Start a receive at ``rank``."""
        got = torch.zeros(1)
        return self.start(rank, p2p.recv, got, src, 0, stream), got

    def send_on(self, rank: int, value: float, dst: int, stream: bool = False) -> Any:
        """Start a send at ``rank``."""
        return self.start(rank, p2p.send, torch.tensor([value]), dst, 0, stream)

    def withdraw(self, operation: Operation) -> None:
        """Cancel it as its waiter does: at once, or, if its memory is in use, when that has ended."""
        lock = self._lock_of(operation)
        with lock:
            operation.withdraw()
            lent = operation.held_by_backend()
        if not lent:
            self.detach(operation)

    def detach(self, operation: Operation) -> None:
        """Let its caller copy what is to be kept, and go."""
        operation.detach()
        self.look()

    def run_threads(self) -> None:
        """Do what was to be done in threads."""
        for member in self.members:
            while member.threads:
                member.threads.pop(0)()

    def run(self, most: int = 1000) -> int:
        """Let the device do what both ends have begun, up to ``most`` transfers; how many there were."""
        count = 0
        while count < most and any(self._step(pair) for pair in self.pairs()):
            count += 1
        return count

    def enqueue(self) -> None:
        """Let the drivers say that what has begun is in their streams."""
        for member in self.members:
            for queue in member.queues.values():
                for launch in queue.begun:
                    launch.enqueued()

    def run_collective(self) -> None:
        """Let the device reduce what all members have begun."""
        ranks = tuple(range(len(self.members)))
        launches = [member.queues[ranks].begun.popleft() for member in self.members]
        total = torch.stack([launch.work.tensor for launch in launches]).sum(0)
        for member, launch in zip(self.members, launches, strict=True):
            launch.work.tensor.copy_(total)
            self._over(member, launch)

    def _step(self, pair: tuple[int, int]) -> bool:
        src, dst = pair
        queues = [self.members[rank].queues.get(pair) for rank in pair]
        if any(queue is None or not queue.begun for queue in queues):
            return False
        sent, got = (queue.begun.popleft() for queue in queues if queue is not None)
        assert (sent.work.what, got.work.what) == ("send", "recv")
        assert sent.work.tensor.numel() == got.work.tensor.numel(), "a real device would hang"
        got.work.tensor.copy_(sent.work.tensor)
        self._over(self.members[src], sent)
        self._over(self.members[dst], got)
        return True

    def _over(self, member: DeviceMember, launch: Launch) -> None:
        with member.lock:
            assert launch.operation is not None
            launch.operation.running = False
            launch.over()
            member.engine.is_over(launch)
        self.look()

    def _lock_of(self, operation: Operation) -> Lock:
        lock = operation.registry.lock
        assert isinstance(lock, Lock)
        return lock


def names(net: DeviceNetwork, src: int = 0, dst: int = 1) -> list[list[str]]:
    """Return what has begun on both ends of a channel."""
    return [[work.what for work in net.members[rank].begun(src, dst)] for rank in (src, dst)]
