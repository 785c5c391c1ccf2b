"""A rogue member whose payload has another length than the collective: the world breaks, in words, for all who wait."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from procs import wait_until
from table import SOON, members

from multiworld import LossReason, PeerLost, World
from multiworld.matching.agreement import CollectiveOperation
from multiworld.rendezvous.wiring import Wires
from multiworld.session.session import Session
from tests.multiworld.engine.reference.frames import HEADER, Kind

CALLS: dict[str, Callable[[Any], Any]] = {
    "broadcast": lambda where: where.broadcast(torch.zeros(4), 1),
    "all_gather": lambda where: where.all_gather([torch.zeros(4), torch.zeros(4)], torch.zeros(4)),
    "all_reduce": lambda where: where.all_reduce(torch.zeros(4)),
}


@contextlib.contextmanager
def beside_a_rogue(store: str) -> Iterator[tuple[World, socket.socket, Any]]:
    """A member, the data connection of the other one, and threads."""
    ends: list[socket.socket] = []
    real = Session._connect

    def connect(session: Session, wires: Wires, *args: Any) -> None:
        if 0 in wires.lanes:
            ends.append(wires.lanes[0].dup())
        real(session, wires, *args)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Session, "_connect", connect)
        with members(store, 2) as ((first, _), pool):
            yield first, ends[0], pool
    ends[0].close()


def called(world: World) -> CollectiveOperation | None:
    """The collective that is under way."""
    operations = tuple(world.member.session.engine.operations)
    return next((one for one in operations if isinstance(one, CollectiveOperation)), None)


def answer(world: World, wire: socket.socket) -> None:
    """Call the same, with a payload of an odd length."""
    operation = called(world)
    assert operation is not None
    said = operation.fingerprint
    header = HEADER.pack(Kind.FINGERPRINT, 0, len(said), 0, operation.gid, len(said) + 7)
    wire.sendall(header + said + bytes(7))


def check(error: BaseException | None) -> None:
    assert isinstance(error, PeerLost)
    assert (error.how, error.ranks) == (LossReason.PROTOCOL, (1,))


@pytest.mark.parametrize("name", CALLS)
def test_all_that_is_awaited_ends(store: str, name: str) -> None:
    with beside_a_rogue(store) as (world, wire, _):

        async def call() -> None:
            tasks = [asyncio.ensure_future(world.recv(torch.zeros(1), 1)), asyncio.ensure_future(CALLS[name](world))]
            while called(world) is None:
                await asyncio.sleep(0)
            answer(world, wire)
            for task in tasks:
                with pytest.raises(PeerLost) as caught:
                    await task
                check(caught.value)

        asyncio.run(call())


@pytest.mark.parametrize("name", CALLS)
def test_all_threads_that_wait_are_back(store: str, name: str) -> None:
    with beside_a_rogue(store) as (world, wire, pool):
        ends = [pool.submit(world.sync.recv, torch.zeros(1), 1), pool.submit(CALLS[name], world.sync)]
        wait_until(lambda: called(world) is not None, SOON, "it does not begin")
        answer(world, wire)
        for end in ends:
            check(end.exception(SOON))
