from __future__ import annotations

import contextlib
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

#: Ends a run that hangs; a busy machine takes minutes for twenty hosts.
TIMEOUT = 600.0


@dataclass(frozen=True, slots=True)
class Site:
    """A package index, hosts of this machine, and `ci/install` as an administrator runs it."""

    top: Path
    index: Index

    @property
    def source(self) -> str:
        return f"--index={self.index.url}/simple"

    def local(self, *names: str, **variables: str | Path) -> Path:
        """Write an inventory of hosts that need no ssh; each has a prefix of its own."""
        more = "".join(f" {name}='{value}'" for name, value in variables.items())
        lines = [f"{name} multiworld_torch_prefix={self.prefix(name)}{more}\n" for name in names]
        path = self.top / "-".join(names)
        path.write_text("".join(["[here]\n", *lines, "[here:vars]\nansible_connection=local\n"]))
        return path

    def prefix(self, name: str) -> Path:
        return self.top / f"{name}-prefix"

    def start(self, *arguments: str | Path, without: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ci.cluster", "--json", *arguments]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = {"PYTHONPATH": str(REPO), "UV_CACHE_DIR": str(self.top / "uv"), "UV_OFFLINE": "0", "PATH": path}
        env = {name: value for name, value in {**clean(), **own}.items() if name != without}
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True, cwd="/", start_new_session=True)

    def run(self, *arguments: str | Path, without: str = "") -> tuple[int, dict[str, dict[str, Any]], str]:
        """Return exit status, results by host, and what was said to a person."""
        return self.end(self.start(*arguments, without=without))

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start hosts: see the mark `sshd` in pyproject.toml."""
    for item in items:
        if "fleet" in getattr(item, "fixturenames", ()):
            item.add_marker("sshd")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with serving(Index(metadata=True, tags=True)) as index:
        offer(index, "1.0", tmp_path)
        offer(index, "2.0", tmp_path)
        yield Site(tmp_path, index)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path / "cluster") as made:
        yield made
