"""A member gone mad: whatever frames it writes, only the world it shares with us breaks, with a typed error.

Some tens of seconds of what ``nox -s fuzz`` does for as long as it is told to.
"""

from __future__ import annotations

from typing import Any

import pytest

from multiworld.matching.mailbox import Mailbox
from tests.multiworld.fuzz import greetings
from tests.multiworld.fuzz.target import run

SECONDS = 20.0


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "wildness"), [(1, 0.0005), (2, 0.003), (3, 0.05)])
def test_frames(store: str, seed: int, wildness: float) -> None:
    report = run(store, seed=seed, frames=10_000_000, seconds=SECONDS, wildness=wildness)
    assert report.frames > 5_000, report
    assert report.breaks["protocol"] > 0, report
    assert sum(report.completed.values()) > 100, report


def test_greetings() -> None:
    report = greetings.run(seed=1, greetings=1_000_000, seconds=10.0)
    assert report.greetings > 5_000, report
    assert {"let in", "waiting", "garbage", "secret"} <= set(report.ends), report


def test_it_finds_a_proof_that_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiworld.net.greeting._proof", lambda *_: "the same for all")
    with pytest.raises(AssertionError, match="let in although"):
        greetings.run(seed=1, greetings=1_000_000, seconds=30.0)


def test_it_finds_a_frame_that_is_not_looked_at(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fuzzer is worth something: without the check of lengths it fails."""

    def careless(self: Mailbox, dtype: int, seq: int, nbytes: int) -> Any:
        operation = self.wanted.pop(seq)
        operation.arriving = True
        operation.dtype = dtype
        return operation.view, lambda: self._arrived(operation)

    monkeypatch.setattr(Mailbox, "on_data", careless)
    with pytest.raises(AssertionError):
        run(store, seed=1, frames=200_000, seconds=30.0, wildness=0.05)
