"""Ctrl-C, an end from outside, and two builds at once: nothing half-written, and the next run goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.build.overlay.little import Little
from tests.build.pipeline import little_release as lr
from tests.build.pipeline.little_release import Place


@pytest.fixture
def place(little: Little, tmp_path: Path) -> Place:
    return lr.make(little, tmp_path)


def _slow(place: Place) -> str:
    return str(place.folder / "slow-g++")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_while_compiling(number: signal.Signals, place: Place) -> None:
    with lr.started(place, *lr.build_arguments(place), CXX=_slow(place)) as process:
        lr.wait_for(place.started, process)
        compiler = int(place.started.read_text())
        assert _alive(compiler)
        os.kill(process.pid, number)
        output = lr.finish(process)
    assert process.returncode == 130, output
    assert "interrupted; nothing half-written is left" in output
    assert "Traceback" not in output
    assert not _alive(compiler)
    assert place.wheels() == []
    assert not (place.results / "build.json").exists()
    assert place.leftovers() == []
    place.go.touch()
    status, output = lr.build(place, CXX=_slow(place))
    assert status == 0, output
    assert len(place.wheels()) == 2


def test_interrupted_twice_it_still_cleans_up(place: Place) -> None:
    """nox sends a second signal soon after the first."""
    with lr.started(place, *lr.build_arguments(place), CXX=_slow(place)) as process:
        lr.wait_for(place.started, process)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            os.kill(process.pid, number)
        output = lr.finish(process)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert place.leftovers() == []


def test_the_second_of_two_builds_waits_and_says_so(place: Place) -> None:
    with lr.started(place, *lr.build_arguments(place), CXX=_slow(place)) as first:
        lr.wait_for(place.started, first)
        log = (place.results / "build.log").read_bytes()
        assert b"compiling" in log
        with lr.started(place, *lr.build_arguments(place), CXX=_slow(place)) as second:
            assert second.stdout is not None
            line = second.stdout.readline()
            assert "another run holds the build of 9.9.0; waiting up to 1800 s for it" in line
            assert (place.results / "build.log").read_bytes().startswith(log), "the waiting run has replaced the log"
            place.go.touch()
            assert first.wait(lr.TIMEOUT) == 0
            rest, _ = second.communicate(timeout=lr.TIMEOUT)
    assert second.returncode == 0, rest
    assert "wheels unchanged, kept" in rest
    assert len(place.wheels()) == 2


def test_builds_into_two_folders_share_no_checkout_at_once(place: Place) -> None:
    with lr.started(place, *lr.build_arguments(place), CXX=_slow(place)) as first:
        lr.wait_for(place.started, first)
        elsewhere = place.folder / "other"
        with lr.started(place, *lr.build_arguments(place)[:-1], elsewhere, MULTIWORLD_LOCK_TIMEOUT="0.2") as second:
            output, _ = second.communicate(timeout=lr.TIMEOUT)
        assert second.returncode == 14, output
        assert "the checkout of 9.9.0 is still locked by another run after 0 s" in output
        assert list((place.folder / "other" / "9.9.0").glob("*.whl")) == []


def test_waiting_has_an_end(place: Place) -> None:
    with lr.started(place, *lr.build_arguments(place), CXX=_slow(place)) as first:
        lr.wait_for(place.started, first)
        status, output = lr.build(place, MULTIWORLD_LOCK_TIMEOUT="0.2")
        assert first.poll() is None
    assert status == 14
    assert "error: BusyError: the build of 9.9.0 is still locked" in output
    assert "to do:" in output
