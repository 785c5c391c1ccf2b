"""A ``MultiWorld`` that is dropped without ``close`` leaves its worlds, and peers see it."""

from __future__ import annotations

import gc
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from procs import cluster, wait_until

from multiworld import MultiWorld, PeerLost
from multiworld.lab.context import Context

SECONDS = 10.0


def _plain(mw: MultiWorld) -> None:
    """Nothing refers to it but its worlds."""


def _cycle(mw: MultiWorld) -> None:
    mw.myself = mw  # type: ignore[attr-defined]


def _subscriber(mw: MultiWorld) -> None:
    mw.subscribe(lambda _: mw.worlds)


def _metrics(mw: MultiWorld) -> None:
    from prometheus_client import CollectorRegistry

    from multiworld.observe.metrics import Metrics

    Metrics(mw, CollectorRegistry())


def _collective(mw: MultiWorld) -> None:
    mw["w"].sync.all_reduce(torch.ones(300_000))


def _group(mw: MultiWorld) -> None:
    mw["w"].group((0, 1)).sync.all_reduce(torch.ones(3))


HOLDERS: dict[str, Callable[[MultiWorld], None]] = {
    "plain": _plain,
    "cycle": _cycle,
    "subscriber": _subscriber,
    "metrics": _metrics,
    "collective": _collective,
    "group": _group,
}


def _drops(context: Context, store: str, how: str) -> Any:
    def life() -> Any:
        mw = MultiWorld()
        mw.sync.join("w", 0, 2, store=store)
        HOLDERS[how](mw)
        return weakref.ref(mw)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dropped = life()
        context.send("dropped")
        context.recv()
        # The backend's thread may be on its way out of the collective still, and holds it until then.
        wait_until(lambda: gc.collect() >= 0 and dropped() is None, SECONDS, "something holds the MultiWorld")
        collected = time.monotonic()
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("mw-")], SECONDS, "threads are left")
    context.send("gone")
    context.recv()
    return collected, [str(w.message) for w in caught if w.category is ResourceWarning]


def _stays(context: Context, store: str, how: str) -> Any:
    with MultiWorld(op_timeout=SECONDS) as mw:
        w = mw.sync.join("w", 1, 2, store=store)
        if how in ("collective", "group"):
            HOLDERS[how](mw)
        context.send("joined")
        with pytest.raises(PeerLost) as caught:
            w.sync.recv(torch.zeros(1), 0)
        return time.monotonic(), caught.value.how


@pytest.mark.parametrize("how", HOLDERS)
def test_what_is_dropped_leaves_its_worlds(store: str, how: str) -> None:
    if how == "metrics":  # here, and not in the worker, whose errors are the test's
        pytest.importorskip("prometheus_client", reason="the metrics extra is not installed")
    with cluster() as c:
        drops, stays = c.start(_drops, store, how), c.start(_stays, store, how)
        assert (stays.recv(), drops.recv()) == ("joined", "dropped")
        drops.send("collect")
        noticed, why = stays.result()
        assert drops.recv() == "gone"
        drops.send("end")
        collected, said = drops.result()
    assert why == "left"
    assert noticed - collected < 1  # far below any timeout; it takes milliseconds
    assert any("without close()" in text and "w" in text for text in said), said


def test_a_world_that_is_held_keeps_its_multiworld(store: str) -> None:
    def life() -> Any:
        return MultiWorld().sync.join("w", 0, 1, store=store)

    world = life()
    gc.collect()
    world.sync.barrier()
    world.member.owner.sync.close()


def test_what_was_closed_is_dropped_without_a_word() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mw = MultiWorld()
        mw.sync.close()
        dropped = weakref.ref(mw)
        del mw
        gc.collect()
    assert dropped() is None


def test_what_could_not_be_made_is_dropped_without_a_word(recwarn: pytest.WarningsRecorder) -> None:
    with pytest.raises(ValueError, match="op_timeout"):
        MultiWorld(op_timeout=-1)
    gc.collect()
    assert [w for w in recwarn if w.category is ResourceWarning] == []
