"""What all multiworld tests share: a fresh store for each test, on a free port or in a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `procs`, in this process and in the workers

torch_distributed = pytest.importorskip("torch.distributed", reason="multiworld needs torch")


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A file store of the test's own: no port, no host to die."""
    return f"file://{tmp_path}/store"


@pytest.fixture
def tcp_store() -> Iterator[str]:
    """A TCP store hosted by the test itself, which outlives every worker."""
    import socket

    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    hosted = torch_distributed.TCPStore(
        "127.0.0.1", port, None, True, timedelta(seconds=30), False, master_listen_fd=listener.detach(), use_libuv=False
    )
    yield f"tcp://127.0.0.1:{port}"
    del hosted
