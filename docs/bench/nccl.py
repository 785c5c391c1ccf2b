"""`bench nccl`: what worlds on NCCL add to the bare communicator, and what they notice of each other's breaks, on
simulated NCCL."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from build import official, releases
from build.paths import REPO
from build.wheeltest.environments import Form, environment, install
from docs.bench import nccl_driver
from docs.bench.figures import Figure, of_ratios, of_samples
from docs.bench.nccl_worlds import Scene, Seen, follower, leader
from docs.bench.overlay import Subject
from gpuless import imitation
from gpuless.control import Action, Remote
from multiworld.lab.bench.report import percentile
from multiworld.lab.workers import WorkerPool

#: What the project promises: microseconds added to a message, where a thread waits for it, and where it is awaited.
ADDED, ADDED_AWAITED = 65.0, 90.0
#: and of a peer's death: seconds until all who wait are released, and what it may cost the other worlds.
RELEASED, UNDISTURBED = 1.0, 1.05
#: and the ratio of pipelined transfers, by the speed of the imitated link in GB/s: 100, 200 and 400 Gbit/s. With 0, a
#: transfer is a copy by this host's processors, which the driver needs, too.
PIPELINED = {0.0: 1.05, 12.5: 1.02, 25.0: 1.03, 50.0: 1.10}
#: Worlds on one device, of which half break.
WORLDS = 100
_SECONDS = 300.0


def measure(subject: Subject) -> list[Figure]:
    """Measure both drivers on the stock wheel of a release that was built."""
    made, rounds = subject.made, subject.rounds
    wheel = official.fetch_wheel(releases.get(subject.release), made.python)
    with environment(Form.STOCK, made.python, [wheel]) as python:
        install(python, "--editable", f"{REPO}[nccl]")
        parts = (of_driver, of_breaks)
        return [
            figure for part in parts for backend in ("nccl", "torch-nccl") for figure in part(python, backend, rounds)
        ]


def of_driver(python: Path, backend: str, rounds: int) -> list[Figure]:
    """Measure one driver in an interpreter with a CUDA build of torch and nccl4py."""
    name = f"{backend} (simulated)"
    by_link = {link: _rounds(python, backend, rounds, link) for link in PIPELINED}
    added = [(one.trip - one.bare_trip) / 2 * 1e6 for one in by_link[0.0]]
    awaited = [(one.awaited_trip - one.bare_trip) / 2 * 1e6 for one in by_link[0.0]]
    return [
        of_samples(f"{name}: added to 4 bytes, a thread waits", added, ADDED, "us"),
        of_samples(f"{name}: added to 4 bytes, awaited, receive posted ahead", awaited, ADDED_AWAITED, "us"),
        *(figure for link, found in by_link.items() for figure in _pipelined(f"{name}: 4 MB pipelined", link, found)),
    ]


def _pipelined(name: str, link: float, found: list[nccl_driver.Round]) -> list[Figure]:
    if link:
        name = f"{name} at {link:g} GB/s"
    bare, limit = [one.bare_transfer for one in found], PIPELINED[link]
    each, batched = [one.transfer for one in found], [one.batched for one in found]
    return [
        of_ratios(f"{name}, a call each, over bare", each, bare, limit),
        of_ratios(f"{name}, over bare in the order of a caller's stream", each, [one.ordered for one in found], limit),
        of_ratios(f"{name}, calls of {nccl_driver.BATCH}, over bare", batched, bare, limit),
    ]


def _rounds(python: Path, backend: str, count: int, link: float = 0.0) -> list[nccl_driver.Round]:
    with _members(python, link) as (pool, folder):
        members = [pool.run(nccl_driver.rounds, str(folder), rank, backend, count) for rank in range(2)]
        found: tuple[list[nccl_driver.Round], ...] = tuple(member.result(_SECONDS) for member in members)
    return found[0]


def of_breaks(python: Path, backend: str, rounds: int) -> list[Figure]:
    """Measure what a peer that dies in mid-transfer costs on one device: in worlds with it, and in those without."""
    name, half = f"{backend} (simulated)", WORLDS // 2
    with _members(python) as (pool, folder):
        found = [_broken(pool, folder / f"{turn}", backend, 1, 300) for turn in range(rounds)]
        seen, released = _broken(pool, folder / "many", backend, half, 10)
    before = [percentile(one.before, 0.99) for one, _ in found]
    after = [percentile(one.after, 0.99) for one, _ in found]
    turns = range(0, len(seen.before), half)
    return [
        of_samples(f"{name}: all released after a peer's death", [seconds for _, seconds in found], RELEASED, "s"),
        of_ratios(f"{name}: p99 of another world while one breaks, over before", after, before, UNDISTURBED),
        of_samples(f"{name}: all released, {half} of {WORLDS} worlds break", [released], RELEASED, "s"),
        of_ratios(
            f"{name}: time of the other {half} worlds while they break, over before",
            [sum(seen.after[at : at + half]) for at in turns],
            [sum(seen.before[at : at + half]) for at in turns],
            UNDISTURBED,
        ),
    ]


def _broken(pool: WorkerPool, folder: Path, backend: str, each: int, turns: int) -> tuple[Seen, float]:
    """Let a peer die with a transfer on the device in each world: what was seen, and how long who waited did so."""
    folder.mkdir()
    scene = Scene(str(folder), backend, each, each, turns)
    members = first, _, other = [
        pool.run(leader, scene),
        pool.run(follower, scene, "kept"),
        pool.run(follower, scene, "lost"),
    ]
    first.recv(_SECONDS)  # it is ready
    with Remote(folder.parent / "control", other.recv(_SECONDS)) as block:
        block.inject("ncclRecv", Action.HOLD)
        first.send("go")
        first.recv(_SECONDS)  # it waits
        until = time.monotonic() + _SECONDS
        while block.counters().fired(("ncclRecv",)) < each:
            if time.monotonic() > until:
                raise TimeoutError("the transfers to the peer that is to die do not come to the device")
            time.sleep(0.01)
        killed = time.monotonic()
        other.kill()
        first.send("go")
    seen = first.result(_SECONDS)
    pool.dismiss(*members)
    return seen, seen.released - killed


@contextlib.contextmanager
def _members(python: Path, link: float = 0.0) -> Iterator[tuple[WorkerPool, Path]]:
    """Processes on the imitation, and a folder for what they share."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        control = folder / "control"
        control.mkdir()
        variables = imitation.environment(python, control, link=link)
        with WorkerPool(python_path=(str(REPO),), python=str(python), environment=variables) as pool:
            yield pool, folder
