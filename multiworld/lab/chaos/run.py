"""Plays a plan: workers, traffic, faults one after the other, and the report."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from multiworld.config import TcpStoreAddress
from multiworld.lab.bench.acts import serve
from multiworld.lab.chaos import workload
from multiworld.lab.chaos.plan import BREAKING, Fault, FaultKind, Plan
from multiworld.lab.chaos.promises import judge
from multiworld.lab.chaos.report import ChaosReport, Story
from multiworld.lab.chaos.workload import Membership, Notice, Tally
from multiworld.lab.injector import Fired, Injector, NotFiredError
from multiworld.lab.stranger import visit
from multiworld.lab.workers import Worker, WorkerPool
from multiworld.version import VERSION

_RECOVERY_SECONDS = 30.0
_LOOK_SECONDS = 0.02
#: how long after a fault that breaks nothing a break still counts as its doing
_CALM_SECONDS = 1.0

Progress = Callable[[str], None]


def play(plan: Plan, progress: Progress) -> ChaosReport:
    """Play ``plan`` with real processes; ``progress`` is called with one line per fault."""
    before = os.getloadavg()
    with (
        tempfile.TemporaryDirectory(prefix="multiworld-chaos-") as folder,
        WorkerPool(Path(folder, "workers.log")) as pool,
    ):
        theatre = Theatre(plan, pool)
        progress(f"{plan.workers} workers in {len(plan.worlds)} worlds, {len(plan.faults)} faults")
        theatre.begin()
        stories = [theatre.strike(fault, progress) for fault in plan.faults]
        tallies = theatre.finish()
        stories = [replace(story, others_slowest=_slowest_elsewhere(story, tallies)) for story in stories]
        promises = judge(plan, stories, theatre.stray, tallies, theatre.deaths)
    facts = {
        "multiworld": VERSION,
        "torch": torch.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load before": f"{before[0]:.2f}",
        "load after": f"{os.getloadavg()[0]:.2f}",
    }
    return ChaosReport(plan, tuple(stories), promises, facts)


class Theatre:
    """The workers of a plan and what they have noticed.

    Attributes:
        stray: breaks that belong to no fault.
        deaths: workers that ended without having been killed.
    """

    def __init__(self, plan: Plan, pool: WorkerPool) -> None:
        self.stray: list[Notice] = []
        self.deaths: list[str] = []
        self._plan = plan
        self._cast = pool
        self._injector = Injector()
        self._workers: dict[int, Worker] = {}
        self._tallies: dict[int, Tally] = {}
        self._store: TcpStoreAddress = pool.process("store").run(serve)
        self._started = 0.0

    def begin(self) -> None:
        """Start the workers and wait until all worlds stand."""
        at = time.monotonic()
        for worker in range(self._plan.workers):
            self._employ(worker)
        expected = {(worker, name) for name, members in self._plan.worlds.items() for worker in members}
        notices: list[Notice] = []
        if self._await_back(expected, at, notices) is None:
            raise TimeoutError(f"the worlds did not stand within {_RECOVERY_SECONDS} s; log: {self._cast.log}")
        self._started = time.monotonic()

    def strike(self, fault: Fault, progress: Progress) -> Story:
        """Make one fault, and watch until all is well again."""
        self._idle_until(self._started + fault.at)
        concerned = self._concerned(fault)
        progress(f"{fault.at:6.1f} s  {fault.kind.value} worker {fault.worker} {fault.world} {fault.detail}".rstrip())
        fired = self._do(fault)
        notices: list[Notice] = []
        expected = {(worker, name) for name in concerned for worker in self._plan.worlds[name]}
        if not expected:
            self._watch(_CALM_SECONDS, notices)
            back: float | None = 0.0
        else:
            back = self._await_back(expected, fired[0].at, notices)
        return Story(fault, fired, tuple(concerned), tuple(notices), back)

    def finish(self) -> dict[int, Tally]:
        """Stop the workers; their tallies."""
        self._watch(_CALM_SECONDS, self.stray)
        self.stray = [notice for notice in self.stray if notice.what == "broken"]
        for worker, process in self._workers.items():
            tally: Tally = process.run(workload.finish, timeout=30)
            self._merge(worker, tally)
        return self._tallies

    def _employ(self, worker: int) -> None:
        process = self._workers[worker] = self._cast.process(f"worker-{worker}")
        memberships = [
            Membership(name, members.index(worker), len(members))
            for name, members in self._plan.worlds.items()
            if worker in members
        ]
        process.start(workload.begin, worker, memberships, self._store)

    def _merge(self, worker: int, tally: Tally) -> None:
        known = self._tallies.setdefault(worker, Tally())
        for name, times in tally.rounds.items():
            known.rounds.setdefault(name, []).extend(times)
        known.wrong += tally.wrong
        known.surprises += tally.surprises

    def _concerned(self, fault: Fault) -> list[str]:
        if fault.kind not in BREAKING:
            return []
        if fault.world:
            return [fault.world]
        second = self._plan.worlds_of(fault.second) if fault.second is not None else []
        return sorted({*self._plan.worlds_of(fault.worker), *second})

    def _do(self, fault: Fault) -> tuple[Fired, ...]:
        process = self._workers[fault.worker]
        if fault.kind is FaultKind.KILL:
            return self._kill(fault)
        if fault.kind in (FaultKind.STOP, FaultKind.SLOW):
            fired = self._injector.freeze(process)
            time.sleep(fault.seconds)
            return fired, self._injector.thaw(process)
        if fault.kind is FaultKind.BUSY:
            call = process.start(workload.hold_gil, fault.seconds)
            mark = process.wait_for("holding", fault.seconds + 20)
            call.result(fault.seconds + 20)
            return (self._injector.record("busy", process.name, mark.at, f"held the GIL for {fault.seconds} s"),)
        if fault.kind is FaultKind.STRANGER:
            return (self._visit(fault, process),)
        return (self._do_in_world(fault, process),)

    def _visit(self, fault: Fault, process: Worker) -> Fired:
        at = time.monotonic()
        seen = visit(process.pid, fault.seconds)
        if not seen.connections:
            raise NotFiredError(f"no port of {process.name} took a connection, of {seen.ports}")
        return self._injector.record("stranger", process.name, at, f"{seen.connections} connections to {seen.ports}")

    def _kill(self, fault: Fault) -> tuple[Fired, ...]:
        struck = [worker for worker in (fault.worker, fault.second) if worker is not None]
        fired = tuple(self._injector.kill(self._workers[worker]) for worker in struck)
        for worker in struck:
            self._cast.dismiss(self._workers[worker])
            self._employ(worker)
        return fired

    def _do_in_world(self, fault: Fault, process: Worker) -> Fired:
        at = time.monotonic()
        if fault.kind is FaultKind.LEAVE:
            process.run(workload.step_out, fault.world)
            process.run(workload.come_back)
            return self._injector.record("leave", process.name, at, "leave() returned")
        if fault.kind is FaultKind.ABORT:
            process.run(workload.abort, fault.world)
            return self._injector.record("abort", process.name, at, "abort() returned")
        return self._bad_message(fault, process, at)

    def _bad_message(self, fault: Fault, process: Worker, at: float) -> Fired:
        members = self._plan.worlds[fault.world]
        rank = members.index(fault.worker)
        peer = (rank + 1) % len(members)
        other = self._workers[members[peer]]
        calls = [
            process.start(workload.mismatch, fault.world, peer, True),
            other.start(workload.mismatch, fault.world, rank, False),
        ]
        said = [call.result() for call in calls]
        if said != ["TensorMismatch"] * 2:
            self.deaths.append(f"a bad message in {fault.world} gave {said}")
        return self._injector.record("bad message", process.name, at, f"sender and receiver got {said[0]}, {said[1]}")

    def _await_back(self, expected: set[tuple[int, str]], since: float, notices: list[Notice]) -> float | None:
        """Wait until all of ``expected`` (worker, world) are back; after how many seconds, None if they are not."""
        deadline = time.monotonic() + _RECOVERY_SECONDS
        while time.monotonic() < deadline:
            self._watch(_LOOK_SECONDS, notices)
            back = {(n.worker, n.world): n for n in notices if n.what == "back" and n.at > since}
            if expected <= set(back) and self._agreed(back, expected):
                return max(notice.at for notice in back.values()) - since
        return None

    def _agreed(self, back: dict[tuple[int, str], Notice], expected: set[tuple[int, str]]) -> bool:
        """Whether the members of each world came back in the same generation."""
        generations: dict[str, set[int]] = {}
        for worker, name in expected:
            generations.setdefault(name, set()).add(back[worker, name].generation)
        return all(len(found) == 1 for found in generations.values())

    def _idle_until(self, at: float) -> None:
        while (left := at - time.monotonic()) > 0:
            self._watch(min(left, 0.2), self.stray)

    def _watch(self, seconds: float, into: list[Notice]) -> None:
        time.sleep(seconds)
        for worker, process in self._workers.items():
            into.extend(mark.value for mark in process.marks("notice"))
            if process.gone and f"worker {worker} ended by itself" not in self.deaths:
                self.deaths.append(f"worker {worker} ended by itself")


def _slowest_elsewhere(story: Story, tallies: dict[int, Tally]) -> float:
    """Longest round, from the fault to the recovery, of worlds that have no member that was hit."""
    start = story.fired[0].at
    end = start + (story.back_after or _CALM_SECONDS)
    untouched = {story.fault.worker, story.fault.second}
    worlds = {name for worker, tally in tallies.items() if worker in untouched for name in tally.rounds}
    elsewhere = [
        seconds
        for tally in tallies.values()
        for name, times in tally.rounds.items()
        if name not in worlds and name not in story.concerned
        for began, seconds in times
        if start <= began + seconds and began <= end
    ]
    return max(elsewhere, default=0.0)
