"""Mistakes of the caller: a typed error at once, which names the remedy; nothing else is touched."""

from __future__ import annotations

import asyncio
import math
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from procs import cluster, wait_until
from torch.distributed import ReduceOp

from multiworld import (
    InvalidArgument,
    MultiWorld,
    RendezvousError,
    StaleGeneration,
    TcpStoreAddress,
    TensorMismatch,
    WorldClosed,
    WorldState,
    WrongContext,
)
from multiworld.errors import BackendUnavailable, MultiWorldError
from multiworld.lab.context import Context
from multiworld.rendezvous.ledger import Ledger


@pytest.fixture
def mw() -> Iterator[MultiWorld]:
    with MultiWorld() as made:
        yield made


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"store": None}, InvalidArgument, "is not a store"),
        ({"store": 5}, InvalidArgument, "is not a store"),
        ({"store": TcpStoreAddress("127.0.0.1", 0)}, InvalidArgument, "serve_store"),
        ({"store": "tcp://nowhere.invalid:2000", "rank": 1, "size": 2}, RendezvousError, "nowhere.invalid"),
        ({"address": "nowhere.invalid"}, InvalidArgument, "address"),
        ({"address": "203.0.113.4"}, InvalidArgument, "address"),
        ({"join_timeout": "x"}, InvalidArgument, "join_timeout"),
        ({"join_timeout": math.nan}, InvalidArgument, "join_timeout"),
        ({"heartbeat": 3}, InvalidArgument, "Heartbeat"),
        ({"rank": True}, InvalidArgument, "rank True"),
        pytest.param(
            {"device": "cuda"},
            BackendUnavailable,
            "CUDA",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device"),
        ),
    ],
)
def test_join(mw: MultiWorld, store: str, arguments: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind) as caught:
        mw.sync.join("w", **{"rank": 0, "size": 1, "store": store, **arguments})
    assert words in str(caught.value)
    assert isinstance(caught.value, MultiWorldError)
    assert caught.value.world == "w"
    assert caught.value.remedy
    assert mw.sync.join("w", 0, 1, store=store).state is WorldState.ACTIVE, "the name is free again"


@pytest.mark.parametrize("path", ["/nonexistent/folder/store", "/proc/version"])
def test_a_file_store_that_cannot_be_opened_stalls_nobody(mw: MultiWorld, path: str) -> None:
    """The constructor of torch's store would try again and again for minutes, holding the GIL."""
    started = time.monotonic()
    with pytest.raises(RendezvousError, match="cannot be reached") as caught:
        mw.sync.join("w", 0, 1, store=f"file://{path}", join_timeout=0.5)
    assert time.monotonic() - started < 8
    assert "path" in caught.value.remedy


def test_a_store_that_join_cannot_host_is_told_as_of_that_join(mw: MultiWorld) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(RendezvousError) as caught:
        mw.sync.join("w", 0, 1, store=f"tcp://127.0.0.1:{other.getsockname()[1]}", join_timeout=0.5)
    assert (caught.value.world, caught.value.rank, caught.value.operation) == ("w", 0, "join")
    assert caught.value.cause == "another program listens there"
    assert caught.value.what.endswith("Address already in use"), "the system's words, and nothing of Python's"


@pytest.mark.parametrize("port", [-1, 70000, "80"])
def test_serve_store(mw: MultiWorld, port: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        mw.serve_store(port=port)
    assert caught.value.operation == "serve_store"


@pytest.mark.parametrize("arguments", [{"op_timeout": -1}, {"op_timeout": "x"}, {"heartbeat": 1}])
def test_multiworld(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        MultiWorld(**arguments)


def test_a_closed_multiworld_hosts_and_tells_nothing() -> None:
    closed = MultiWorld()
    closed.sync.close()
    with pytest.raises(WrongContext, match="make a new one"):
        closed.serve_store()
    with pytest.raises(WrongContext):
        closed.subscribe(lambda _: None)


def _times_out_wrongly(context: Context, store: str, rank: int) -> Any:
    with MultiWorld() as mw:
        w = mw.sync.join("w", rank, 2, store=store)
        for timeout in (0, -1, math.nan, "x"):
            with pytest.raises(InvalidArgument) as caught:
                w.sync.recv(torch.zeros(1), 1 - rank, timeout=timeout)
            assert (caught.value.operation, caught.value.world) == ("recv", "w")
            with pytest.raises(InvalidArgument):
                asyncio.run(w.recv(torch.zeros(1), 1 - rank, timeout=timeout))
        with pytest.raises(InvalidArgument, match="cannot be sent") as caught:
            w.sync.send_object(lambda: 1, 1 - rank)
        assert (caught.value.world, caught.value.rank) == ("w", rank)
        with pytest.raises(InvalidArgument, match=": send cannot take a sparse tensor"):
            w.sync.send(torch.eye(2).to_sparse(), 1 - rank)
        with pytest.raises(TensorMismatch, match=r"rank 1 calls all_reduce of 8 bytes of float32 with MAX"):
            w.sync.all_reduce(torch.zeros(1 + rank), ReduceOp.MAX if rank else ReduceOp.SUM)
        for wrong in ({"rank": 9}, {"size": 0}, {"timeout": -1}):
            with pytest.raises(InvalidArgument) as caught:
                w.sync.rejoin(**wrong)
            assert caught.value.operation == "rejoin"
        total = torch.ones(1)
        w.sync.all_reduce(total)
        return w.generation, float(total)


def test_a_mistaken_call_leaves_the_world_as_it_was(store: str) -> None:
    with cluster() as c:
        for rank in range(2):
            c.start(_times_out_wrongly, store, rank)
        assert c.results() == [(1, 2.0), (1, 2.0)]


def test_what_is_to_be_done_after_an_abort_can_be_done(mw: MultiWorld, store: str) -> None:
    w = mw.sync.join("w", 0, 1, store=store)
    w.abort("enough")
    with pytest.raises(WorldClosed) as caught:
        w.sync.barrier()
    assert "rejoin()" in caught.value.remedy
    assert w.sync.rejoin().generation == 2


def test_two_members_of_one_world_in_one_process(mw: MultiWorld, store: str) -> None:
    """Each in a MultiWorld of its own; a third that takes a rank of theirs is told whose it is."""
    with MultiWorld() as other, MultiWorld() as third:
        joined: list[Any] = []
        thread = threading.Thread(target=lambda: joined.append(other.sync.join("w", 1, 2, store=store)))
        thread.start()
        first = mw.sync.join("w", 0, 2, store=store)
        thread.join(10)
        with pytest.raises(
            RendezvousError, match="rank 0 is taken in generation 1 by another join of this very process"
        ):
            third.sync.join("w", 0, 2, store=store, join_timeout=5)
        assert first.state is joined[0].state is WorldState.ACTIVE


def test_two_joins_of_one_process_that_meet_at_a_rank(mw: MultiWorld, store: str) -> None:
    """The first is still under way: the second one is told that it is this very process."""
    with MultiWorld() as other, ThreadPoolExecutor() as pool:
        first = pool.submit(mw.sync.join, "w", 0, 2, store=store)
        ledger = Ledger(dist.FileStore(store.removeprefix("file://"), -1), "w")
        wait_until(lambda: bool(ledger.claimed(1, 0)), 10, "the first one does not claim")
        with pytest.raises(RendezvousError, match="another join of this very process") as caught:
            other.sync.join("w", 0, 2, store=store, join_timeout=5)
        assert str(os.getpid()) not in str(caught.value)
        other.sync.join("w", 1, 2, store=store)
        assert first.result(10).generation == 1


def test_a_rejoin_whose_rank_this_process_took_again(mw: MultiWorld, store: str) -> None:
    world = mw.sync.join("w", 0, 1, store=store)
    world.abort("on purpose")
    with MultiWorld() as other:
        other.sync.join("w", 0, 1, store=store)
        with pytest.raises(StaleGeneration, match="another join of this very process has rank 0 in generation 2"):
            world.sync.rejoin()


def test_a_join_without_a_time_limit(mw: MultiWorld) -> None:
    world = mw.sync.join("w", 0, 1, store=mw.serve_store("127.0.0.1", 0), join_timeout=math.inf)
    assert world.state is WorldState.ACTIVE
