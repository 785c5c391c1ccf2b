"""Pools that share one loaded process: each has its own variables and log, and the process ends with the last."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from procs import ROOT, Link, open_links

from multiworld.lab.workers import WorkerPool

Make = Callable[..., WorkerPool]


# What the processes load instead of torch: these tests are not about it, and it takes seconds.
_STAND_INS = """
import sys, types
for name in ("torch", "torch.distributed", "multiworld.multi"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["torch"].set_num_threads = id
"""


@pytest.fixture
def python_path(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "sitecustomize.py").write_text(_STAND_INS)
    return (str(tmp_path), str(ROOT), str(Path(__file__).parents[1]), str(Path(__file__).parent))


@pytest.fixture
def make(tmp_path: Path, python_path: tuple[str, ...]) -> Make:
    def made(**options: Any) -> WorkerPool:
        return WorkerPool(python_path=python_path, shared=tmp_path / "run", **options)

    return made


def _family(_: Link) -> tuple[int, int]:
    """Our forkserver, and the process that has forked it."""
    status = Path(f"/proc/{os.getppid()}/status").read_text()
    return os.getppid(), int(status.partition("PPid:")[2].split()[0])


def _place(_: Link, variable: str) -> tuple[str | None, str, list[str]]:
    sys.stderr.write(f"{variable} said\n")
    sys.stderr.flush()
    return os.environ.get(variable), str(Path.cwd()), [link for link in open_links() if link[0] != "/"]


def _await_end(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], 30)[0], "a process is left"
        os.close(descriptor)


def test_one_process_loads_for_both_and_ends_with_the_last(make: Make, tmp_path: Path) -> None:
    with make() as one:
        with make() as other:
            (ours, loaded), (theirs, same) = one.run(_family).result(), other.run(_family).result()
            assert ours != theirs
            assert loaded == same
            assert loaded != os.getpid()
        ended = os.pidfd_open(loaded)
        assert one.run(_family).result() == (ours, loaded)
    _await_end([ended])
    assert [path.suffix for path in (tmp_path / "run").iterdir()] == [".lock"]
    with make() as late:
        assert late.run(_family).result()[1] != loaded


def test_variables_folder_log_and_descriptors_are_a_pool_s_own(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make(environment={"ONE": "1"}, log=tmp_path / "one") as one:
        monkeypatch.chdir(tmp_path)
        with make(environment={"OTHER": "2"}, log=tmp_path / "other") as other:
            assert other.run(_place, "ONE").result()[0] is None
            value, folder, links = other.run(_place, "OTHER").result()
            assert (value, folder) == ("2", str(tmp_path))
            assert len(links) == 1, links  # its channel
            assert one.run(_place, "ONE").result()[:2] == ("1", str(ROOT))
    assert (tmp_path / "one").read_text() == "ONE said\n"
    assert (tmp_path / "other").read_text() == "ONE said\nOTHER said\n"


def test_a_pool_does_not_need_the_process_that_was_killed(make: Make) -> None:
    with make() as one:
        loaded = one.run(_family).result()[1]
        ended = os.pidfd_open(loaded)
        os.kill(loaded, signal.SIGKILL)
        _await_end([ended])
        assert one.run(_family).result()[0]
        with make() as next_one:
            assert next_one.run(_family).result()[1] != loaded


_OWNER = """
import json, sys, time
from pathlib import Path
from procs import Link
from test_shared_pools import _family
from multiworld.lab.workers import WorkerPool
pool = WorkerPool(python_path=tuple(sys.path), shared=Path(sys.argv[1]))
worker = pool.worker()
print(json.dumps([*worker.run(_family), worker.pid]), flush=True)
time.sleep(1000)
"""


def test_nothing_is_left_of_a_pool_whose_process_was_killed(tmp_path: Path, python_path: tuple[str, ...]) -> None:
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(python_path)}
    command = [sys.executable, "-c", _OWNER, str(tmp_path / "run")]
    owner = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)
    with owner:
        assert owner.stdout is not None
        processes = [os.pidfd_open(pid) for pid in json.loads(owner.stdout.readline())]
        assert len(processes) == len({"forkserver", "loaded process", "worker"})
        owner.kill()
        _await_end(processes)


def test_a_socket_that_nobody_listens_to_is_replaced(make: Make, tmp_path: Path) -> None:
    with make() as one:
        loaded = one.run(_family).result()[1]
        ended = os.pidfd_open(loaded)
        (path,) = [found for found in (tmp_path / "run").iterdir() if found.suffix != ".lock"]
    _await_end([ended])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stale:
        stale.bind(str(path))
    with make() as late:
        assert late.run(_family).result()[1] != loaded
