from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from build.paths import REPO
from tests.build.cluster.hosts import Cluster, cluster, offer
from tests.build.official.server import Index, serving
from tests.build.wheels.little_wheel import clean

TIMEOUT = 240.0


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster, a package index, and `ci/install` as an administrator runs it."""

    cluster: Cluster
    index: Index

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ci.cluster", *arguments, "--ssh-config", self.cluster.config, "--json"]
        # The cache of uv is the test's own: pages of an index on an old port must not be taken for those of this one.
        own = {"PYTHONPATH": str(REPO), "UV_CACHE_DIR": str(self.cluster.top / "uv"), "UV_OFFLINE": "0"}
        return subprocess.Popen(
            command,
            env={**clean(), **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
            start_new_session=True,
        )

    def run(self, *arguments: str | Path) -> tuple[int, dict[str, dict[str, Any]], str]:
        """Return exit status, results by host, and what was said to a person."""
        return self.end(self.start(*arguments))

    def end(self, process: subprocess.Popen[str]) -> tuple[int, dict[str, dict[str, Any]], str]:
        try:
            out, said = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise AssertionError(process.communicate()[1]) from None
        assert "Traceback" not in said, said
        hosts = json.loads(out)["hosts"] if out else []
        return process.returncode, {host["host"]: host for host in hosts}, said

    def install(
        self, hosts: str, *more: str | Path, version: str = "1.0"
    ) -> tuple[int, dict[str, dict[str, Any]], str]:
        return self.run(f"torch-multiworld=={version}", "--hosts", hosts, "--index", f"{self.index.url}/simple", *more)

    def requirements(self) -> Path:
        """Write requirements of version 1.0 with hashes."""
        data = self.index.files["torch_multiworld-1.0-py3-none-any.whl"]
        path = self.cluster.top / "locked.txt"
        path.write_text(f"torch-multiworld==1.0 \\\n    --hash=sha256:{hashlib.sha256(data).hexdigest()}\n")
        return path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start hosts: see the mark `sshd` in pyproject.toml."""
    for item in items:
        if "site" in getattr(item, "fixturenames", ()):
            item.add_marker("sshd")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with cluster(tmp_path / "cluster") as made, serving(Index()) as index:
        offer(index, "1.0", tmp_path)
        offer(index, "2.0", tmp_path)
        yield Site(made, index)
