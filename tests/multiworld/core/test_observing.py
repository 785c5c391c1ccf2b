"""Events, metrics, the profiler: what can be seen from outside."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from procs import cluster, wait_until

from multiworld import (
    BrokenWorldException,
    InvalidArgument,
    MultiWorld,
    PeerLost,
    PeerRecovered,
    PeerSuspected,
    World,
    WorldBroken,
    WorldJoined,
    WorldLeft,
)
from multiworld.lab.context import Context
from multiworld.session.counters import History


def _listens(context: Context, store: str, rank: int) -> Any:
    async def main() -> Any:
        async with MultiWorld() as mw:
            stream = mw.events()
            w = await mw.join("w", rank, 2, store=store)
            if rank == 1:
                w.abort("enough")
                return None
            with pytest.raises(PeerLost):
                await w.recv(torch.zeros(1), 1)
            joined, broken = await anext(stream), await anext(stream)
            while isinstance(broken, PeerSuspected | PeerRecovered):  # the machine is busy
                broken = await anext(stream)
            return joined, broken, w.failure is broken.failure

    return asyncio.run(asyncio.wait_for(main(), 20))


def test_events_say_what_happened(store: str) -> None:
    with cluster() as c:
        first = c.start(_listens, store, 0)
        c.start(_listens, store, 1)
        joined, broken, same = first.result()
    assert isinstance(joined, WorldJoined)
    assert (joined.world, joined.generation, joined.rank, joined.size) == ("w", 1, 0, 2)
    assert isinstance(broken, WorldBroken)
    assert same
    assert "enough" in str(broken.failure)
    assert broken.at >= joined.at


def test_metrics_count_operations_bytes_and_breaks(store: str) -> None:
    prometheus = pytest.importorskip("prometheus_client", reason="the metrics extra is not installed")
    from multiworld.observe.metrics import Metrics

    registry = prometheus.CollectorRegistry()
    with MultiWorld() as mw:
        metrics = Metrics(mw, registry)
        w = mw.sync.join("w", 0, 1, store=store)
        for _ in range(3):
            w.sync.barrier()
        read = registry.get_sample_value
        assert read("multiworld_operations_total", {"world": "w", "operation": "barrier"}) == 3
        assert read("multiworld_world_active", {"world": "w"}) == 1
        w.abort("on purpose")
        wait_until(
            lambda: read("multiworld_breaks_total", {"world": "w", "cause": "WorldClosed", "how": ""}) == 1,
            5,
            "the break was not counted",
        )
        assert read("multiworld_world_active", {"world": "w"}) == 0
        w.sync.rejoin()
        w.sync.barrier()
        assert read("multiworld_operations_total", {"world": "w", "operation": "barrier"}) == 4
        assert read("multiworld_world_generation", {"world": "w"}) == 2
        metrics.close()
        assert read("multiworld_world_active", {"world": "w"}) is None


@pytest.mark.parametrize("describes", [False, True])
def test_one_registry_has_the_metrics_of_one_multiworld(store: str, describes: bool) -> None:
    """Two worlds of one name would else be one series with two values; a registry that looks refuses it itself."""
    prometheus = pytest.importorskip("prometheus_client", reason="the metrics extra is not installed")
    from multiworld.observe.metrics import Metrics

    registry = prometheus.CollectorRegistry(auto_describe=describes)
    with MultiWorld() as mw, MultiWorld() as other:
        metrics = Metrics(mw, registry)
        for again in (mw, other):
            with pytest.raises(InvalidArgument, match="one Metrics per registry"):
                Metrics(again, registry)
        mw.sync.join("w", 0, 1, store=store)
        series = [line for line in prometheus.generate_latest(registry).decode().splitlines() if line[0] != "#"]
        assert len({line.rpartition(" ")[0] for line in series}) == len(series) > 0
        metrics.close()
        metrics.close()
        Metrics(other, registry).close()
        for wrong in ((5, registry), (mw, 5), (None, None)):
            with pytest.raises(InvalidArgument):
                Metrics(*wrong)  # type: ignore[arg-type]


def _late_metrics(context: Context, store: str, rank: int) -> Any:
    """Join, wait, break, rejoin; then look for the first time."""
    prometheus = importlib.import_module("prometheus_client")
    metrics = importlib.import_module("multiworld.observe.metrics")
    with MultiWorld() as mw:
        w = mw.sync.join("w", rank, 2, store=store)
        if rank == 1:
            context.recv()  # the other one waits
        w.sync.send(torch.ones(1), 0) if rank == 1 else _receives(context, w)
        w.sync.barrier()
        if rank == 0:
            context.recv()  # the other one has passed the barrier, too
            w.abort("on purpose")
        else:
            context.send("passed")
        with pytest.raises(BrokenWorldException):
            w.sync.recv(torch.zeros(1), 1 - rank)
        w.sync.rejoin()
        w.sync.barrier()
        registry = prometheus.CollectorRegistry()
        metrics.Metrics(mw, registry)
        return {(s.name, *s.labels.values()): s.value for family in registry.collect() for s in family.samples}


def _receives(context: Context, w: World) -> None:
    asked = threading.Timer(0.3, context.send, ["waits"])
    asked.start()
    w.sync.recv(torch.zeros(1), 1)


def test_metrics_made_after_a_join_know_what_came_before(store: str) -> None:
    pytest.importorskip("prometheus_client", reason="the metrics extra is not installed")
    with cluster() as c:
        first, second = c.start(_late_metrics, store, 0), c.start(_late_metrics, store, 1)
        assert first.recv() == "waits"
        second.send("go on")
        assert second.recv() == "passed"
        first.send("break")
        found, others = c.results()
    for samples, cause, how in ((found, "WorldClosed", ""), (others, "PeerLost", "reported")):
        assert samples["multiworld_joins_total", "w"] == 2
        assert samples["multiworld_breaks_total", "w", cause, how] == 1
        assert samples["multiworld_join_seconds_count", "w"] == 2
        assert samples["multiworld_outage_seconds_count", "w"] == 1
        assert samples["multiworld_operation_seconds_count", "w", "barrier"] == 2
    assert found["multiworld_operation_seconds_count", "w", "recv"] == 1, "the one that failed is not in"
    assert found["multiworld_operation_seconds_sum", "w", "recv"] > 0
    assert found["multiworld_operation_seconds_bucket", "w", "recv", "0.25"] == 0
    assert found["multiworld_operation_seconds_bucket", "w", "recv", "+Inf"] == 1


def test_the_silence_of_a_lost_peer_is_counted() -> None:
    history = History()
    about: dict[str, Any] = {"world": "w", "generation": 1, "rank": 0}
    history.note(PeerSuspected(**about, monotonic=10.5, peer=1, silence=0.5))
    history.note(PeerSuspected(**about, monotonic=10.6, peer=2, silence=0.5))
    history.note(PeerRecovered(**about, monotonic=10.7, peer=2, silence=0.5))
    history.note(WorldBroken(**about, monotonic=10.9, failure=PeerLost("w", "x", how="silence", ranks=(1, 2))))
    history.note(WorldJoined(**about, monotonic=12.9, size=2, seconds=0.1))
    detected, out = history.detection["w"], history.outage["w"]
    assert (sum(detected.counts), detected.total) == (1, pytest.approx(0.9))
    assert (sum(out.counts), out.total) == (1, pytest.approx(2.0))
    assert detected.counts[detected.bounds.index(1.0)] == 1


def test_the_silence_before_a_leave_is_not_that_before_a_later_break() -> None:
    history = History()
    about: dict[str, Any] = {"world": "w", "generation": 1, "rank": 0}
    history.note(PeerSuspected(**about, monotonic=10.5, peer=1, silence=0.5))
    history.note(WorldLeft(**about, monotonic=11.0))
    history.note(WorldJoined(**about, monotonic=100.0, size=2, seconds=0.1))
    history.note(WorldBroken(**about, monotonic=200.0, failure=PeerLost("w", "x", how="eof", ranks=(1,))))
    assert history.detection == {}


def test_the_page_lists_every_series(store: str) -> None:
    prometheus = pytest.importorskip("prometheus_client", reason="the metrics extra is not installed")
    from multiworld.observe.metrics import Metrics

    page = (Path(__file__).resolve().parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", page, re.MULTILINE))
    registry = prometheus.CollectorRegistry()
    with MultiWorld() as mw:
        Metrics(mw, registry)
        made = {f.name + "_total" * (f.type == "counter"): f.type for f in registry.collect()}
    assert listed == made


def test_series_of_somebody_else_are_left_alone() -> None:
    prometheus = pytest.importorskip("prometheus_client", reason="the metrics extra is not installed")
    from multiworld.observe.metrics import Metrics

    registry = prometheus.CollectorRegistry(auto_describe=True)
    prometheus.Gauge("multiworld_world_size", "theirs", registry=registry)
    with MultiWorld() as mw:
        with pytest.raises(InvalidArgument, match="multiworld_world_size"):
            Metrics(mw, registry)
        assert not mw._table.resources.callbacks._subscriptions


def test_operations_show_in_the_profiler(store: str) -> None:
    with MultiWorld() as mw:
        w = mw.sync.join("profiled", 0, 1, store=store)
        with torch.profiler.profile() as profile:
            w.sync.all_reduce(torch.ones(4))
        names = [event.name for event in profile.events()]
    assert any("multiworld::all_reduce" in name and "world=profiled" in name for name in names)


def test_leaving_is_an_event(store: str) -> None:
    seen: list[str] = []
    with MultiWorld() as mw:
        mw.subscribe(lambda event: seen.append(type(event).__name__))
        mw.subscribe(lambda _: 1 / 0)  # a subscriber that fails stops nobody
        mw.sync.join("w", 0, 1, store=store).sync.leave()
        wait_until(lambda: WorldLeft.__name__ in seen, 5, "no WorldLeft")
    assert seen == ["WorldJoined", "WorldLeft"]


IMPORT = """
import logging, os, signal, sys
before = dict(os.environ), signal.getsignal(signal.SIGUSR1), list(logging.root.handlers), sorted(os.listdir("."))
import multiworld
assert "torch" not in sys.modules, "torch was loaded"
from multiworld import BrokenWorldException, Heartbeat, PeerLost
assert "torch" not in sys.modules, "torch was loaded"
after = dict(os.environ), signal.getsignal(signal.SIGUSR1), list(logging.root.handlers), sorted(os.listdir("."))
assert before == after
"""


def test_importing_changes_nothing(tmp_path: Any) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    subprocess.run([sys.executable, "-c", IMPORT], cwd=tmp_path, env=environment, check=True, timeout=60)
