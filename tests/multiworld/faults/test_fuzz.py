"""A member gone mad: whatever frames it writes, only the world it shares with us breaks, with a typed error.

A part of what ``nox -s fuzz`` does for as long as it is told to: so many frames, whatever the machine, and ten times as
many with ``--whole``.
"""

from __future__ import annotations

import pytest

from multiworld.session.session import Session
from tests.multiworld.fuzz import greetings
from tests.multiworld.fuzz.target import run

#: the most that a run may take, on a machine that is busy with other things
SECONDS = 120.0


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "wildness", "frames"), [(5, 0.0005, 8_000), (2, 0.003, 5_000), (3, 0.05, 10_000)])
def test_frames(
    tcp_store: str,
    whole: bool,
    seed: int,
    wildness: float,
    frames: int,
) -> None:
    frames *= 10 if whole else 1
    report = run(tcp_store, seed=seed, frames=frames, seconds=SECONDS, wildness=wildness)
    assert report.frames >= frames, report
    assert report.breaks["protocol"] > 0, report
    assert sum(report.completed.values()) > 100, report


def test_greetings() -> None:
    report = greetings.run(seed=1, greetings=20_000, seconds=SECONDS)
    assert report.greetings == 20_000, report
    assert {"let in", "waiting", "garbage", "secret"} <= set(report.ends), report


def test_it_finds_a_proof_that_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiworld.transport.handshake._proof", lambda *_: "the same for all")
    with pytest.raises(AssertionError, match="let in although"):
        greetings.run(seed=1, greetings=1_000_000, seconds=30.0)


def test_it_finds_a_frame_that_is_not_handled(tcp_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fuzzer is worth something: it fails where a frame ends in an error of ours."""

    def on_bye(*_: object, **__: object) -> None:
        raise ValueError("not foreseen")

    monkeypatch.setattr(Session, "on_bye", on_bye)
    with pytest.raises(AssertionError, match=r"handling what rank 1 sent failed: .*not foreseen"):
        run(tcp_store, seed=1, frames=200_000, seconds=30.0, wildness=0.05)
