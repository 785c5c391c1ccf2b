"""Plays a plan: workers, traffic, faults one after the other, and the report."""

from __future__ import annotations

import os
import platform
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import replace

import torch

from multiworld.config import TcpStoreAddress
from multiworld.lab.chaos import workload
from multiworld.lab.chaos.plan import BREAKING, Fault, FaultKind, Plan
from multiworld.lab.chaos.report import ChaosReport, Story, judge
from multiworld.lab.chaos.workload import Membership, Notice, Tally
from multiworld.lab.context import serve_store
from multiworld.lab.injector import Fired, Injector
from multiworld.lab.workers import Worker, WorkerPool, log_folder
from multiworld.version import VERSION

_RECOVERY_SECONDS = 30.0
_LOOK_SECONDS = 0.02
#: a break this soon after a fault that breaks nothing still counts as its doing
_CALM_SECONDS = 1.0

Progress = Callable[[str], None]


def play(plan: Plan, progress: Progress) -> ChaosReport:
    """Play ``plan`` with real processes, and judge the faults that were made.

    No fault begins after ``plan.seconds``: each waits until the worlds have recovered from the one before it, so a slow
    machine makes fewer of them. ``progress`` gets a line per fault, with the time that is left.
    """
    before = os.getloadavg()
    with log_folder("chaos") as folder, WorkerPool(folder / "log") as pool:
        run = Run(plan, pool, progress)
        progress(f"{plan.workers} workers in {len(plan.worlds)} worlds, at most {len(plan.faults)} faults")
        run.begin()
        stories = run.strike_all()
        tallies = run.finish()
        progress(f"{len(stories)} faults were made; judging")
        stories = [replace(story, others_slowest=_slowest_elsewhere(story, tallies)) for story in stories]
        promises = judge(plan, stories, run.stray, tallies, run.deaths)
    facts = {
        "multiworld": VERSION,
        "torch": torch.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load before": f"{before[0]:.2f}",
        "load after": f"{os.getloadavg()[0]:.2f}",
        "faults": f"{len(stories)} of the plan's {len(plan.faults)} in {plan.seconds:.0f} s",
    }
    return ChaosReport(facts, plan, tuple(stories), promises)


class Run:
    """The workers of a plan and what they have noticed; ``stray`` breaks belong to no fault."""

    def __init__(self, plan: Plan, pool: WorkerPool, progress: Progress) -> None:
        self.stray: list[Notice] = []
        self.deaths: list[str] = []
        self._plan = plan
        self._pool = pool
        self._progress = progress
        self._injector = Injector()
        self._workers: dict[int, Worker] = {}
        self._store: TcpStoreAddress = pool.worker("store").run(serve_store)
        self._started = 0.0

    def begin(self) -> None:
        at = time.monotonic()
        for number in range(self._plan.workers):
            self._start_worker(number)
        expected = {(number, name) for name, members in self._plan.worlds.items() for number in members}
        if self._await_back(expected, at, []) is None:
            raise TimeoutError(f"the worlds were not assembled within {_RECOVERY_SECONDS} s; log: {self._pool.log}")
        self._started = time.monotonic()

    def strike_all(self) -> list[Story]:
        """Make the faults of the plan, as many as fit into its time."""
        stories: list[Story] = []
        for fault in self._plan.faults:
            while (left := self._started + fault.at - time.monotonic()) > 0:
                self._watch(min(left, 0.2), self.stray)
            elapsed = time.monotonic() - self._started
            if elapsed + fault.seconds >= self._plan.seconds and stories:
                break
            what = f"{fault.kind.value} worker {fault.worker} {fault.world} {fault.detail}".rstrip()
            self._progress(f"{elapsed:6.1f} s of {self._plan.seconds:.0f}  {what}")
            stories.append(self._strike(fault))
            if stories[-1].back_after is None:  # what comes now would hit workers that are in no world
                self._progress(f"the worlds were not back within {_RECOVERY_SECONDS:.0f} s: no further fault is made")
                break
        return stories

    def _strike(self, fault: Fault) -> Story:
        concerned = self._concerned(fault)
        fired = self._do(fault)
        notices: list[Notice] = []
        expected = {(number, name) for name in concerned for number in self._plan.worlds[name]}
        back: float | None = 0.0
        if expected:
            back = self._await_back(expected, fired[0].at, notices)
        else:
            self._watch(_CALM_SECONDS, notices)
        return Story(fault, fired, tuple(concerned), tuple(notices), back)

    def finish(self) -> dict[int, Tally]:
        self._watch(_CALM_SECONDS, self.stray)
        self.stray = [notice for notice in self.stray if notice.what == "broken"]
        return {number: worker.run(workload.finish, timeout=30) for number, worker in self._workers.items()}

    def _start_worker(self, number: int) -> None:
        worker = self._workers[number] = self._pool.worker(f"worker-{number}")
        mine = {name: self._plan.worlds[name] for name in self._plan.worlds_of(number)}
        memberships = [Membership(name, members.index(number), len(members)) for name, members in mine.items()]
        worker.start(workload.begin, number, memberships, self._store)

    def _concerned(self, fault: Fault) -> list[str]:
        if fault.kind not in BREAKING:
            return []
        if fault.world:
            return [fault.world]
        second = self._plan.worlds_of(fault.second) if fault.second is not None else []
        return sorted({*self._plan.worlds_of(fault.worker), *second})

    def _do(self, fault: Fault) -> tuple[Fired, ...]:
        worker = self._workers[fault.worker]
        if fault.kind is FaultKind.KILL:
            return self._kill(fault)
        if fault.kind in (FaultKind.STOP, FaultKind.SLOW):
            fired = self._injector.freeze(worker)
            time.sleep(fault.seconds)
            return fired, self._injector.thaw(worker)
        if fault.kind is FaultKind.BUSY:
            call = worker.start(workload.hold_gil, fault.seconds)
            mark = worker.wait_for("holding", fault.seconds + 20)
            call.result(fault.seconds + 20)
            return (self._injector.record("busy", worker.name, mark.at, f"held the GIL for {fault.seconds} s"),)
        if fault.kind is FaultKind.STRANGER:
            return (self._injector.visit(worker, fault.seconds),)
        return (self._do_in_world(fault, worker),)

    def _kill(self, fault: Fault) -> tuple[Fired, ...]:
        struck = [number for number in (fault.worker, fault.second) if number is not None]
        fired = tuple(self._injector.kill(self._workers[number]) for number in struck)
        for number in struck:
            self._pool.dismiss(self._workers[number])
            self._start_worker(number)
        return fired

    def _do_in_world(self, fault: Fault, worker: Worker) -> Fired:
        at = time.monotonic()
        if fault.kind is FaultKind.BAD_MESSAGE:
            return self._bad_message(fault, worker, at)
        if fault.kind is FaultKind.LEAVE:
            worker.run(workload.step_out, fault.world)
            worker.run(workload.come_back)
        else:
            worker.run(workload.abort, fault.world)
        return self._injector.record(fault.kind.value, worker.name, at, f"{fault.kind.value}() returned")

    def _bad_message(self, fault: Fault, worker: Worker, at: float) -> Fired:
        members = self._plan.worlds[fault.world]
        rank = members.index(fault.worker)
        peer = (rank + 1) % len(members)
        calls = [
            worker.start(workload.mismatch, fault.world, peer, True),
            self._workers[members[peer]].start(workload.mismatch, fault.world, rank, False),
        ]
        said = [call.result() for call in calls]
        if said != ["TensorMismatch"] * 2:
            self.deaths.append(f"a bad message in {fault.world} gave {said}")
        return self._injector.record("bad message", worker.name, at, f"sender and receiver got {said[0]}, {said[1]}")

    def _await_back(self, expected: set[tuple[int, str]], since: float, notices: list[Notice]) -> float | None:
        """Wait until all of ``expected`` (worker, world) are back; after how many seconds, None if they are not."""
        deadline = time.monotonic() + _RECOVERY_SECONDS
        while time.monotonic() < deadline:
            self._watch(_LOOK_SECONDS, notices)
            back = {(n.worker, n.world): n for n in notices if n.what == "back" and n.at > since}
            agreed = len({(name, back[number, name].generation) for number, name in expected & back.keys()})
            if expected <= back.keys() and agreed == len({name for _, name in expected}):
                return max(notice.at for notice in back.values()) - since
        return None

    def _watch(self, seconds: float, into: list[Notice]) -> None:
        time.sleep(seconds)
        for number, worker in self._workers.items():
            into.extend(mark.value for mark in worker.marks("notice"))
            if worker.gone and f"worker {number} ended by itself" not in self.deaths:
                self.deaths.append(f"worker {number} ended by itself")


def _slowest_elsewhere(story: Story, tallies: dict[int, Tally]) -> float:
    """Longest round, from the fault to the recovery, of worlds that have no member that was hit."""
    start = story.fired[0].at
    end = start + (story.back_after or _CALM_SECONDS)
    of_struck = [tally for number, tally in tallies.items() if number in story.struck]
    hit = {name for tally in of_struck for name in tally.rounds} | {*story.concerned}
    elsewhere = [
        seconds
        for tally in tallies.values()
        for name, times in tally.rounds.items()
        if name not in hit
        # rounds of a world come one after the other: of those before the fault, only the last may reach into it
        for began, seconds in times[max(0, bisect_left(times, (start,)) - 1) : bisect_right(times, (end, 0.0))]
        if start <= began + seconds
    ]
    return max(elsewhere, default=0.0)
