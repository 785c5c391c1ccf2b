"""Fixtures: one pool per test process, fresh workers per test, and faults that must have fired."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from multiworld.lab.injector import Injector
from multiworld.lab.workers import WorkerPool
from tests.multiworld.faults.backends import BACKENDS, Backend
from tests.multiworld.faults.scene import Scene

ROOT = Path(__file__).resolve().parents[3]
#: what the modules of the tests import, and each worker would import anew
PRELOAD = ("pytest", "typer.testing", "tests.multiworld.faults.network", "tests.multiworld.faults.scene")


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    """Where workers come from; torch is loaded once."""
    with WorkerPool(tmp_path_factory.mktemp("workers") / "workers.log", (str(ROOT),), PRELOAD) as made:
        yield made


@pytest.fixture
def injector(request: pytest.FixtureRequest) -> Iterator[Injector]:
    """Makes faults; a test that used it and made none has shown nothing, and fails."""
    made = Injector()
    yield made
    if getattr(request.node, "went_well", False):
        assert made.fired, "no fault was injected"


@pytest.fixture(params=[pytest.param(row, marks=[pytest.mark.gpu] * row.gpu) for row in BACKENDS], ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    """A row of the table of backends; skipped with its reason where it cannot run."""
    row: Backend = request.param
    if (reason := row.missing()) is not None:
        pytest.skip(reason)
    return row


@pytest.fixture
def scene(pool: WorkerPool, injector: Injector, backend: Backend, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A store, workers and worlds for one test; nothing of them is left behind."""
    start = pool.log.stat().st_size
    yield Scene(pool, injector, backend.name)
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
