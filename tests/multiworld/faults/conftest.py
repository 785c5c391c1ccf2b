"""Fixtures: one pool per test process, fresh workers per test, and faults that must have fired."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from procs import PRELOAD, ROOT, shared_pool

from multiworld.lab.injector import Injector
from multiworld.lab.workers import WorkerPool
from tests.multiworld.faults.backends import DEVICES, GLOO, Backend, Kind, rows

if TYPE_CHECKING:  # it loads torch, see ../conftest.py
    from tests.multiworld.faults.scene import Scene

Pools = Callable[[Kind], WorkerPool]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Three processes for each core where faults run alone: they wait for time to pass even more than others do."""
    if not all(Path(each).absolute().is_relative_to(Path(__file__).parent) for each in config.args):
        return None
    config.option.dist = "worksteal"
    return 3 * len(os.sched_getaffinity(0))


@pytest.fixture(scope="session")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pools]:
    """Make pools of workers, one forkserver for each kind of device; torch is loaded once in each."""
    made: dict[Kind, WorkerPool] = {}
    with ExitStack() as stack:

        def pool_of(kind: Kind) -> WorkerPool:
            if kind is Kind.CPU:
                return shared_pool()
            if kind not in made:
                folder = tmp_path_factory.mktemp(f"workers-{kind.value}")
                env = _imitation(folder) if kind is Kind.SIMULATED else {}
                pool = WorkerPool(folder / "workers.log", (str(ROOT),), PRELOAD, environment=env)
                made[kind] = stack.enter_context(pool)
            return made[kind]

        yield pool_of


def _imitation(folder: Path) -> dict[str, str]:
    from gpuless import imitation  # needs the tooling's libraries, which a run on gloo alone does without
    from tests.multiworld.faults.scene import CONTROL

    (folder / CONTROL).mkdir()
    return imitation.environment(Path(sys.executable), folder / CONTROL, devices=DEVICES)


@pytest.fixture
def pool(pools: Pools, request: pytest.FixtureRequest) -> WorkerPool:
    """The pool of the test's row; gloo's for a test that is about no backend."""
    row = request.getfixturevalue("backend") if "backend" in request.fixturenames else GLOO
    return pools(row.kind)


@pytest.fixture
def injector(request: pytest.FixtureRequest) -> Iterator[Injector]:
    """Makes faults; a test that used it and made none has shown nothing, and fails."""
    made = Injector()
    yield made
    if getattr(request.node, "went_well", False):
        assert made.fired, "no fault was injected"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that uses a backend on the rows of the table that can run here; ``only_rows`` says why on fewer."""
    if "backend" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("only_rows")
        asked = Kind.GPU if "gpu" in metafunc.config.getoption("markexpr") else None
        metafunc.parametrize("backend", rows(mark.args[0] if mark else "", asked))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what an official wheel is known to fail."""
    if ours := [item for item in items if Path(__file__).parent in item.path.parents]:
        from tests.multiworld.faults import on_stock

        on_stock.expect(ours)


@pytest.fixture
def scene(pool: WorkerPool, injector: Injector, backend: Backend, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A store, workers and worlds for one test; nothing of them is left behind."""
    from tests.multiworld.faults.scene import Scene

    start = pool.log.stat().st_size
    yield Scene(pool, injector, backend)
    pool.dismiss_all()
    if getattr(request.node, "went_wrong", False):
        with pool.log.open("rb") as log:
            log.seek(start)
            sys.stderr.write(log.read().decode(errors="replace")[-20_000:])


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[Any]:
    """Tell fixtures whether their test failed, so that they show the workers' log."""
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        item.went_wrong = True  # type: ignore[attr-defined]
    elif report.when == "call" and report.passed:
        item.went_well = True  # type: ignore[attr-defined]
