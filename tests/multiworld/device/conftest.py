"""Fixtures: members of a world on simulated NCCL; their processes come from one that has loaded torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # what loads torch is loaded where it is used, see ../conftest.py
    from tests.multiworld.device.simulated import Cluster


@pytest.fixture(scope="session", autouse=True)
def _pool_ends() -> Iterator[None]:
    from tests.multiworld.device.ranks import close_pool

    yield
    close_pool()


@pytest.fixture
def members(tmp_path: Path, backend: str) -> Iterator[Cluster]:
    """Members of a world of this test's own, on each driver."""
    from tests.multiworld.device.members import Place
    from tests.multiworld.device.ranks import pool
    from tests.multiworld.device.simulated import Cluster

    made = Cluster(pool().workers, pool().control, Place(f"file://{tmp_path}/store", backend))
    try:
        yield made
    finally:
        made.end()
