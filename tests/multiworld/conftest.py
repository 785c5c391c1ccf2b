"""Fixtures of all tests of multiworld, and how tests are dealt to processes (``-n auto``)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

# Before torch is loaded: threads of OpenMP wait busily for each other, and there are more processes than cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# For `procs`, in this process and in the workers. So no folder here may have the name of a library: not `nccl` either.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule() -> None:
    """Not while the conftests are loaded: a process of pytest-xdist that only hands tests out does without torch."""
    pytest.importorskip("torch.distributed", reason="multiworld needs torch")


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A file store of the test's own: no port, no host to die."""
    return f"file://{tmp_path}/store"


@pytest.fixture
def tcp_store() -> Iterator[str]:
    """A TCP store hosted by the test itself, which outlives every worker."""
    import socket

    from torch.distributed import TCPStore

    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    hosted = TCPStore(
        "127.0.0.1", port, None, True, timedelta(seconds=30), False, master_listen_fd=listener.detach(), use_libuv=False
    )
    yield f"tcp://127.0.0.1:{port}"
    del hosted


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Twice as many processes as cores: most tests wait for real time to pass, and those waits overlap."""
    config.option.dist = "worksteal"
    return 2 * len(os.sched_getaffinity(0))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let every process begin with its share of the slow tests, so that none of them is the last one alone."""
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    slow = [item for item in items if item.get_closest_marker("slow") and not item.get_closest_marker("skip")]
    chosen = set(slow)
    rest = [item for item in items if item not in chosen]
    share = -(-len(items) // count)
    dealt: list[pytest.Item] = []
    for number in range(count):
        mine = slow[number::count]
        dealt += [*mine, *(rest.pop(0) for _ in range(min(len(rest), share - len(mine))))]
    items[:] = dealt + rest
