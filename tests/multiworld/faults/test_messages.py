"""Messages that are not what the other side expects, and peers and strangers that send rubbish."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch.distributed import ReduceOp

from multiworld import BrokenWorldException, TensorMismatch, WorldState
from multiworld.lab.context import Context
from multiworld.lab.injector import listening_ports
from tests.multiworld.faults import acts
from tests.multiworld.faults.bounds import GONE_SECONDS
from tests.multiworld.faults.operations import SMALL, Row
from tests.multiworld.faults.scene import CALM, Scene

WORLD = "struck"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The call of each side: operation, floats, dtype, and an argument of the operation."""

    label: str
    ours: tuple[str, int, str]
    theirs: tuple[str, int, str]

    def __str__(self) -> str:
        return self.label


def _p2p(label: str, send: tuple[int, str], recv: tuple[int, str]) -> Mismatch:
    return Mismatch(label, ("send", *send), ("recv", *recv))


_BIG = 1 << 20
MISMATCHES = (
    _p2p("oversized", (8, "float32"), (4, "float32")),
    _p2p("undersized", (4, "float32"), (8, "float32")),
    _p2p("oversized, large", (_BIG, "float32"), (4, "float32")),
    _p2p("undersized, large", (4, "float32"), (_BIG, "float32")),
    _p2p("dtype", (4, "float32"), (4, "int32")),
    _p2p("dtype, same bytes", (8, "float32"), (4, "float64")),
    _p2p("empty against some", (0, "float32"), (4, "float32")),
    Mismatch("all_reduce length", ("all_reduce", 8, "float32"), ("all_reduce", 4, "float32")),
    Mismatch("all_reduce length, large", ("all_reduce", _BIG, "float32"), ("all_reduce", _BIG + 1, "float32")),
    Mismatch("all_reduce small against large", ("all_reduce", 4, "float32"), ("all_reduce", _BIG, "float32")),
    Mismatch("all_reduce dtype", ("all_reduce", 8, "float32"), ("all_reduce", 4, "float64")),
    Mismatch("broadcast length", ("broadcast", _BIG, "float32"), ("broadcast", 4, "float32")),
    Mismatch("other operation", ("all_reduce", 4, "float32"), ("broadcast", 4, "float32")),
    Mismatch("other reduction", ("all_reduce", 4, "float32"), ("all_reduce max", 4, "float32")),
    Mismatch("barrier against all_reduce", ("barrier", 4, "float32"), ("all_reduce", 4, "float32")),
    Mismatch("all_gather length", ("all_gather", _BIG, "float32"), ("all_gather", 8, "float32")),
    Mismatch("send_tensor against recv", ("send_tensor", 4, "float32"), ("recv", 4, "float32")),
)


async def call(context: Context, name: str, what: tuple[str, int, str]) -> None:
    """Call one side of a mismatch in a world of two."""
    operation, count, dtype = what
    world = context.mw[name]
    tensor = torch.ones(count, dtype=getattr(torch, dtype)).to(world.device)
    peer = 1 - world.rank
    if operation in {"send", "recv", "send_tensor"}:
        await getattr(world, operation)(tensor, peer)
    elif operation == "all_gather":
        await world.all_gather([torch.empty_like(tensor) for _ in range(2)], tensor)
    elif operation == "broadcast":
        await world.broadcast(tensor, 0)
    elif operation == "barrier":
        await world.barrier()
    else:
        await world.all_reduce(tensor, ReduceOp.MAX if operation.endswith("max") else ReduceOp.SUM)


@pytest.mark.parametrize("first", [0, 1], ids=["sender first", "receiver first"])
@pytest.mark.parametrize("mismatch", MISMATCHES, ids=str)
def test_mismatch(scene: Scene, mismatch: Mismatch, first: int) -> None:
    """Both sides are told, no process dies, and the world goes on."""
    a, b = members = scene.workers(2)
    scene.join(WORLD, members)
    calls = [(a, mismatch.ours), (b, mismatch.theirs)]
    running = {}
    for index in (first, 1 - first):
        worker, what = calls[index]
        running[index] = worker.start(call, WORLD, what)
        worker.run(acts.standing, WORLD)  # by its answer, the call before it has begun
    for index in (0, 1):
        outcome = running[index].outcome()
        assert isinstance(outcome.error, TensorMismatch), f"side {index}: {outcome.error!r}"
        assert outcome.error.world == WORLD
        assert outcome.error.theirs
    scene.injector.record("mismatch", WORLD, time.monotonic(), "both sides raised TensorMismatch")
    assert [worker.run(acts.standing, WORLD).state for worker in members] == [WorldState.ACTIVE] * 2
    scene.works(WORLD, members)


def _sockets() -> Iterator[socket.socket]:
    for entry in sorted(os.listdir("/proc/self/fd")):  # noqa: PTH208 - names, not paths
        with contextlib.suppress(OSError, ValueError):
            if str(Path(f"/proc/self/fd/{entry}").readlink()).startswith("socket:"):
                yield socket.socket(fileno=os.dup(int(entry)))


def send_rubbish(context: Context, ports: list[int], rubbish: bytes) -> int:
    """Write ``rubbish`` to every established connection of ours from or to one of those ports; how many there are."""
    with contextlib.ExitStack() as stack:
        found = []  # all before the first is written to: the world may break, and end the others, at once
        for sock in map(stack.enter_context, _sockets()):
            with contextlib.suppress(OSError):
                ends = {sock.getpeername()[1], sock.getsockname()[1]} if sock.family == socket.AF_INET else set()
                if ends & set(ports):
                    found.append(sock)
        for sock in found:
            with contextlib.suppress(OSError):
                sock.send(rubbish)
        return len(found)


RUBBISH = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "zeros": bytes(4096),
    "ones": b"\xff" * 65536,
    "json": b'{"say": "break", "ranks": "x"}\n{"a"\n[]\n',
    "nothing": b"",
}


@pytest.mark.only_rows("gloo", "strangers reach the control lanes, which are the same on every backend")
@pytest.mark.parametrize("rubbish", RUBBISH)
def test_strangers(scene: Scene, rubbish: str) -> None:
    """Somebody who is no member connects to every port and sends rubbish, or nothing: nobody minds."""
    a, b = members = scene.workers(2)
    scene.join(WORLD, members)
    addresses = [(host, port) for port, host in listening_ports(a.pid).items()]
    assert addresses, "the process listens nowhere"
    with contextlib.ExitStack() as stack:
        for address in addresses * 3:
            sock = stack.enter_context(socket.create_connection(address, timeout=5))
            with contextlib.suppress(OSError):
                sock.sendall(RUBBISH[rubbish])
            scene.injector.record("stranger", a.name, time.monotonic(), f"connected to {address}")
        scene.works(WORLD, members, 3)
        scene.join("new", [a, b])
        scene.works("new", members)
    scene.works(WORLD, members)


@pytest.mark.only_rows("gloo", "strangers reach the control lanes, which are the same on every backend")
@pytest.mark.parametrize("rubbish", ["http", "zeros", "ones", "json"])
def test_member_that_sends_rubbish(scene: Scene, rubbish: str) -> None:
    """A member gone mad writes into its connections: its worlds break with a typed error, the others go on."""
    a, b, mad = members = scene.workers(3)
    scene.join(CALM, [a, b])
    scene.join(WORLD, members)
    ports = [port for worker in members for port in listening_ports(worker.pid)]
    waiting = [worker.start(acts.operate, WORLD, Row("recv", SMALL), 2) for worker in (a, b)]
    for worker in (a, b):
        worker.wait_for("operating")
    at = time.monotonic()
    count = mad.run(send_rubbish, ports, RUBBISH[rubbish])
    assert count >= 2, "no connection was found to write to"
    scene.injector.record("rubbish", mad.name, at, f"{len(RUBBISH[rubbish])} bytes into {count} connections")
    for call in waiting:
        outcome = call.outcome()
        assert isinstance(outcome.error, BrokenWorldException), repr(outcome.error)
        assert outcome.ended - at < GONE_SECONDS
    scene.works(CALM, [a, b])
