"""The unwritten rest of an operation arrives, whatever its member does next: it may never wait again."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from procs import wait_until
from table import members

from multiworld import World
from multiworld.operations import collectives, p2p
from multiworld.rendezvous.wiring import Wires
from multiworld.session.session import Session

SECONDS = 10.0
COUNT = 100_000  # float32: many times what the sockets below hold, and little enough to travel with the signatures


@contextlib.contextmanager
def short_of_buffers(store: str) -> Iterator[list[World]]:
    """Two members between which a socket takes little at a time."""
    pair, tcp = iter(socket.socketpair()), []
    real = Session._connect

    def connect(session: Session, wires: Wires, *args: Any) -> None:
        # TCP waits for timers when its buffers are this small.
        ((peer, replaced),) = wires.lanes.items()
        tcp.append(replaced)
        sock = next(pair)
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        wires.lanes[peer] = sock
        real(session, wires, *args)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Session, "_connect", connect)
        with members(store, 2) as (worlds, _):
            yield worlds
    for sock in tcp:
        sock.close()


def arrives(world: World, operation: Any) -> None:
    """Its member reads what comes; the other one has no thread or loop that does anything for the world."""

    def done() -> bool:
        world.member.session.bridge.drain(0)
        return bool(operation.done)

    wait_until(done, SECONDS, "the rest never comes")


def owner(alarm: Any) -> Any:
    return getattr(alarm, "__self__", None)


def in_a_thread(world: World, tensor: torch.Tensor) -> None:
    world.sync.broadcast(tensor, 0)


def in_a_loop_that_stops(world: World, tensor: torch.Tensor) -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(world.broadcast(tensor, 0))  # and not closed: the program may go on with it


@pytest.mark.parametrize("call", [in_a_thread, in_a_loop_that_stops])
def test_a_collective_is_over_for_its_member_but_not_for_its_peer(
    store: str, call: Callable[[World, torch.Tensor], None]
) -> None:
    ours, theirs = torch.ones(COUNT), torch.zeros(COUNT)
    with short_of_buffers(store) as (first, second):
        operation = collectives.broadcast(second.member.session.engine, second, theirs, 0)
        call(first, ours)
        arrives(second, operation)
        session = first.member.session
        wait_until(
            lambda: session.bridge not in map(owner, session.hub._alarms), SECONDS, "the hub looks on for nothing"
        )
    assert torch.equal(ours, theirs)


def test_a_send_that_is_given_up(store: str) -> None:
    ours, theirs = torch.ones(COUNT), torch.zeros(COUNT)
    with short_of_buffers(store) as (first, second):
        receive = p2p.recv(second.member.session.engine, second, theirs, 0, 0)
        first.member.session.bridge.drain(1)
        send = p2p.send(first.member.session.engine, first, ours, 1, 0)
        with first.member.session.lock:
            send.withdraw()
        ours.fill_(7)
        arrives(second, receive)
    assert torch.equal(theirs, torch.ones(COUNT))
