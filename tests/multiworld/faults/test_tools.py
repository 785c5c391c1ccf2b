"""The command and its tools: reproducible plans, judgement that can fail, and runs with real workers."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import asdict, replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

from multiworld.errors import InvalidArgument
from multiworld.lab.bench.report import BenchReport, Load, Spread, Verdict, judged, paired_ratio, percentile
from multiworld.lab.chaos.plan import Fault, FaultKind, Plan, draw_plan
from multiworld.lab.chaos.report import Story, judge
from multiworld.lab.chaos.run import play
from multiworld.lab.chaos.workload import Notice, Tally, finish
from multiworld.lab.context import Context
from multiworld.lab.injector import Fired, Injector, NotFiredError, proven
from multiworld.lab.workers import WorkerPool, log_folder
from multiworld.observe.status_file import StatusFile, read_all
from tests.multiworld.faults import acts
from tests.multiworld.faults.scene import Scene

ROOT = Path(__file__).resolve().parents[3]


def _invoked(*arguments: str) -> Any:
    """Run the command in this process; its outcome. Skips without the extra."""
    pytest.importorskip("typer", reason="the cli extra is not installed")
    from typer.testing import CliRunner

    from multiworld.cli.app import app

    return CliRunner().invoke(app, list(arguments))


def _command(*arguments: str, seconds: float = 280.0) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("typer", reason="the cli extra is not installed")
    return subprocess.run(
        [sys.executable, "-m", "multiworld", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=seconds
    )


def test_same_seed_same_plan() -> None:
    assert draw_plan(7, 60, 5, 6) == draw_plan(7, 60, 5, 6)
    assert draw_plan(7, 60, 5, 6) != draw_plan(8, 60, 5, 6)


@pytest.mark.parametrize("seed", range(20))
def test_plans_make_sense(seed: int) -> None:
    plan = draw_plan(seed, 120, 6, 8)
    assert {worker for members in plan.worlds.values() for worker in members} == set(range(6))
    assert all(2 <= len(set(members)) == len(members) <= 4 for members in plan.worlds.values())
    for fault in plan.faults:
        assert not fault.world or fault.worker in plan.worlds[fault.world]
        assert fault.second != fault.worker
    json.dumps(asdict(plan))


def test_plan_of_too_few() -> None:
    with pytest.raises(InvalidArgument):
        draw_plan(1, 60, 2, 6)


WORLDS = {"a": (0, 1), "b": (1, 2)}


def _story(
    kind: FaultKind, notices: list[Notice], back: float | None = 1.0, concerned: tuple[str, ...] = ("a",)
) -> Story:
    fault = replace(draw_plan(1, 3, 3, 2).faults[0], kind=kind, worker=0, second=None, world="")
    return Story(fault, (Fired(kind.value, "0", 100.0, "seen"),), concerned, tuple(notices), back)


def _notice(worker: int, world: str, at: float) -> Notice:
    return Notice(worker, world, "broken", at, 1, "PeerLost", (0,), "eof")


GOOD = [_notice(1, "a", 100.1)]


@pytest.mark.parametrize(
    ("promise", "story", "extra"),
    [
        ("only worlds of the struck worker break", _story(FaultKind.KILL, [*GOOD, _notice(2, "b", 100.1)]), {}),
        ("only worlds of the struck worker break", _story(FaultKind.KILL, GOOD), {"stray": [_notice(1, "b", 50.0)]}),
        ("every other member notices, in time", _story(FaultKind.KILL, []), {}),
        ("every other member notices, in time", _story(FaultKind.KILL, [_notice(1, "a", 103.0)]), {}),
        ("slow, busy and mistaken workers break nothing", _story(FaultKind.SLOW, GOOD, 0.0, ()), {}),
        ("every world comes back", _story(FaultKind.KILL, GOOD, None), {}),
        ("no data is wrong", _story(FaultKind.KILL, GOOD), {"tally": Tally(wrong=["a"])}),
        ("no process dies but the killed", _story(FaultKind.KILL, GOOD), {"deaths": ["worker 2"]}),
        ("nothing unexpected is raised", _story(FaultKind.KILL, GOOD), {"tally": Tally(surprises=["OSError"])}),
        ("other worlds go on meanwhile", replace(_story(FaultKind.KILL, GOOD), others_slowest=5.0), {}),
    ],
)
def test_a_broken_promise_is_seen(promise: str, story: Story, extra: dict) -> None:  # type: ignore[type-arg]
    plan = Plan(1, 3.0, 3, WORLDS, (story.fault,))

    def broken(with_story: Story, **more: object) -> set[str]:
        tally, stray, deaths = more.get("tally", Tally()), more.get("stray", []), more.get("deaths", [])
        return {p.name for p in judge(plan, [with_story], stray, {1: tally}, deaths) if not p.kept}  # type: ignore[arg-type,dict-item]

    assert broken(_story(FaultKind.KILL, GOOD)) == set()
    assert promise in broken(story, **extra)


def test_injector_refuses_what_did_not_happen(pool: WorkerPool) -> None:
    """A worker that ends in another way than the fault is no proof of the fault."""
    worker = pool.worker("short-lived")
    worker.close()  # it ends by itself, with code 0
    assert worker.exit_code() == 0
    with pytest.raises(NotFiredError):
        Injector().died(worker, "exit", 0.0, 3)
    pool.dismiss(worker)


def test_statistics() -> None:
    assert percentile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert Spread.of([1.0, 2.0, 3.0, 4.0]).most == 4.0
    ratio = paired_ratio([2.0, 2.2, 1.8, 2.0, 2.1], [1.0, 1.1, 0.9, 1.0, 1.0])
    assert ratio.low <= ratio.value <= ratio.high
    assert 1.9 < ratio.value < 2.2


def test_doctor() -> None:
    done = _command("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert done.returncode == 0, checks
    assert "rejoined as generation" in checks["a world of two"]["found"]


@pytest.mark.parametrize(
    "arguments", [("bench", "--only", "nonsense"), ("chaos", "--workers", "1"), ("nonsense",)], ids=" ".join
)
def test_mistakes_of_the_user(arguments: tuple[str, ...]) -> None:
    """A message and exit code 2, without a traceback."""
    done = _invoked(*arguments)
    assert done.exit_code == 2
    assert done.exception is None or isinstance(done.exception, SystemExit)


@pytest.mark.slow
def test_chaos_with_real_workers() -> None:
    """A seed that draws a stranger, two kills and a slow one, in worlds of two and of three."""
    done = _command("chaos", "--seed", "48", "--minutes", "0.12", "--workers", "4", "--worlds", "2", "--json")
    assert done.stdout, done.stderr[-5000:]
    report = json.loads(done.stdout)
    broken = [promise for promise in report["promises"] if not promise["kept"]]
    assert (done.returncode, broken) == (0, [])
    assert report["stories"]
    assert all(story["fired"] for story in report["stories"])


def test_a_worker_finishes_when_a_cancellation_is_lost() -> None:
    """Before Python 3.12, ``asyncio.wait_for`` returns a result that is there already, and forgets the cancellation."""

    async def traffic(arrived: asyncio.Future[None]) -> None:
        await asyncio.wait_for(arrived, 30)
        await asyncio.Event().wait()

    async def finished() -> Tally:
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ours, theirs = Pipe()
        with ours, theirs:
            context = Context("worker", ours)
            context.kept.update(tally=Tally(), tasks=[asyncio.ensure_future(traffic(arrived))])
            await asyncio.sleep(0)
            arrived.set_result(None)
            return await asyncio.wait_for(finish(context), 10)

    assert asyncio.run(finished()) == Tally()


def test_logs_of_a_failure_stay() -> None:
    """The error of a worker names its log."""
    with log_folder("test") as folder:
        assert folder.is_dir()
    assert not folder.exists()
    with pytest.raises(ValueError, match="worker"), log_folder("test") as folder:
        raise ValueError("worker")
    assert folder.is_dir()
    folder.rmdir()


@pytest.mark.slow
def test_chaos_ends_when_its_time_is_over() -> None:
    """The plan may have more faults: those done until then are judged."""
    drawn = draw_plan(3, 3, 3, 2)
    world, members = next(iter(drawn.worlds.items()))
    fault = Fault(0.0, FaultKind.ABORT, members[0], world=world)
    told: list[str] = []
    report = play(replace(drawn, faults=(fault,) * 1000), told.append)
    assert 0 < len(report.stories) < 1000
    assert sum("abort worker" in line and "of 3" in line for line in told) == len(report.stories)
    assert report.facts["faults"] == f"{len(report.stories)} of the plan's 1000 in 3 s"


def test_on_a_busy_machine_no_time_is_missed() -> None:
    """A leak is one on any machine."""
    quiet, busy = Load(0.1, 2), Load(1.5, 2)
    slow = judged("slow", "<= 1 s", "2 s", False)
    leak = judged("leak", "nothing", "1 thread", False, timed=False)
    good = judged("good", "<= 1 s", "0.5 s", True)
    figures = (slow, leak, good)
    assert [f.under(quiet).verdict for f in figures] == [Verdict.MISSED, Verdict.MISSED, Verdict.OK]
    assert [f.under(busy).verdict for f in figures] == [Verdict.NOT_JUDGED, Verdict.MISSED, Verdict.OK]
    assert BenchReport({}, (), (slow.under(busy), good)).good


@pytest.mark.slow
@pytest.mark.nightly("test_forty_memberships_and_failed_joins_leave_no_thread_and_no_descriptor")
def test_bench_with_real_workers() -> None:
    """The part runs and judges; whether its time is reached is not this test's to say, on a machine with others."""
    done = _command("bench", "--quick", "--only", "rejoin", "--json")
    figures = {figure["name"]: figure for figure in json.loads(done.stdout)["figures"]}
    assert done.returncode in (0, 1), done.stderr
    assert figures["rejoin 100 times: left behind"]["verdict"] == "ok"


async def show_status(context: Context, folder: str) -> None:
    """Opt in to ``multiworld top``."""
    context.kept["status"] = StatusFile(context.mw, folder, interval=0.2)


def hide_status(context: Context) -> None:
    """Opt out."""
    context.kept["status"].close()


@pytest.mark.only_rows("gloo", "the view shows states, not tensors")
def test_top(scene: Scene, tmp_path: Path) -> None:
    """A broken world and a dead process are seen from outside; the file goes with its owner."""
    a, b, victim = scene.workers(3)
    scene.join("calm", [a, b])
    scene.join("struck", [a, victim])
    for worker in (a, b, victim):
        worker.run(show_status, str(tmp_path))
    scene.injector.kill(victim)
    a.run(acts.await_break, "struck")
    proven(lambda: "seen" if "PeerLost" in _top(tmp_path) and "(silent)" in _top(tmp_path) else None, "the view")
    a.run(hide_status)
    assert {status.pid for status in read_all(tmp_path)} == {b.pid, victim.pid}
    (tmp_path / "torn.multiworld.json").write_text('{"pid": 1')
    assert len(read_all(tmp_path)) == 2
    assert _invoked("top", str(tmp_path / "nowhere")).exit_code == 2


def _top(folder: Path) -> str:
    return _invoked("top", "--once", str(folder)).output
