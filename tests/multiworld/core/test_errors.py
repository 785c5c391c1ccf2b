"""The families of errors, and how a loss was noticed."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest
import torch
from free_port import free_port
from procs import cluster, wait_until

import multiworld
from multiworld import (
    BrokenWorldException,
    LossReason,
    MultiWorld,
    MultiWorldError,
    PeerLost,
    TensorMismatch,
    WorldState,
)
from multiworld.lab.context import Context


def _disagrees(context: Context, store: str, rank: int) -> Any:
    async def main() -> Any:
        async with MultiWorld() as mw:
            w = await mw.join("w", rank, 2, store=store)
            try:
                await w.all_reduce(torch.zeros(1 + rank))
            except BrokenWorldException:
                return "was taken for a broken world"
            except TensorMismatch:
                await w.barrier()
                return w.state

    return asyncio.run(asyncio.wait_for(main(), 20))


def test_a_mismatch_is_no_broken_world(store: str) -> None:
    assert issubclass(TensorMismatch, MultiWorldError)
    with cluster() as c:
        for rank in range(2):
            c.start(_disagrees, store, rank)
        assert c.results() == [WorldState.ACTIVE] * 2


def _disagrees_as_before(context: Context, port: int, rank: int) -> Any:
    from multiworld.manager import WorldManager

    async def main() -> Any:
        manager = WorldManager()
        await manager.initialize_world("w", rank, 2, port=port)
        with pytest.raises(BrokenWorldException) as caught:
            await manager.communicator.all_reduce(torch.zeros(1 + rank), world_name="w")
        again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
        assert (type(again), str(again)) == (type(caught.value), str(caught.value))
        await manager.communicator.all_reduce(torch.zeros(1), world_name="w")
        found = isinstance(again, TensorMismatch), again.world, again.theirs, manager.communicator.is_broken("w")
        manager.cleanup()
        return found

    return asyncio.run(asyncio.wait_for(main(), 20))


def test_programs_for_pymultiworld_still_catch_a_mismatch_as_they_did() -> None:
    port = free_port()
    with cluster() as c:
        for rank in range(2):
            c.start(_disagrees_as_before, port, rank)
        for mismatch, world, theirs, broken in c.results():
            assert (mismatch, world, broken) == (True, "w", False)
            assert theirs


def test_how_a_peer_was_lost_is_an_enum_that_compares_with_its_text() -> None:
    lost = PeerLost("w", "gone", ranks=(1,), how="eof")
    assert lost.how is LossReason.EOF
    assert lost.how == "eof"
    assert lost.how in {"eof", "silence"}
    assert f"{lost.how} {lost.how!s}" == "eof eof"
    again = pickle.loads(pickle.dumps(lost))  # noqa: S301 - our own
    assert again.how is LossReason.EOF
    with pytest.raises(ValueError, match="tired"):
        PeerLost("w", "gone", how="tired")
    assert "LossReason" in multiworld.__all__
    for reason in LossReason:
        assert f"``{reason.name}``" in (LossReason.__doc__ or "")


def _aborts(context: Context, store: str) -> None:
    with MultiWorld() as mw:
        mw.sync.join("w", 1, 2, store=store).abort("on purpose")


def test_metrics_count_breaks_by_how_the_peer_was_lost(store: str) -> None:
    prometheus = pytest.importorskip("prometheus_client", reason="the metrics extra is not installed")
    from multiworld.observe.metrics import Metrics

    registry = prometheus.CollectorRegistry()
    labels = {"world": "w", "cause": "PeerLost", "how": str(LossReason.REPORTED)}
    with cluster() as c, MultiWorld() as mw:
        Metrics(mw, registry)
        c.start(_aborts, store)
        w = mw.sync.join("w", 0, 2, store=store)
        wait_until(lambda: registry.get_sample_value("multiworld_breaks_total", labels) == 1, 10, "it was not counted")
        assert isinstance(w.failure, PeerLost)
        assert w.failure.how is LossReason.REPORTED


def test_operations_have_a_minute_unless_they_say_otherwise(store: str) -> None:
    with MultiWorld() as mw:
        assert mw.sync.join("w", 0, 1, store=store).config.op_timeout == 60.0
