"""The rows of nccl2: each is measured, and each that fails is sound as soon as its fault is taken away."""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuless.catalogue import PROBES
from gpuless.model import Form, Outcome
from gpuless.runner import Runner, runner
from gpuless.subject import Subject

_ROWS = {probe.id: probe for probe in PROBES if probe.id.startswith("nccl2-")}
_ERROR = ["ncclCommGetAsyncError", 1, 6]
_ELSEWHERE = {"site": "ncclReduceScatter"}  # a call that the operation does not make
_CREATION = Path(__file__).with_name("creation_nccl2.py")
_DEATH = Path(__file__).with_name("death_nccl2.py")


@pytest.fixture(scope="module")
def ready(subject: Subject) -> Iterator[Runner]:
    if not _ROWS["nccl2-works"].covers(subject.release):
        pytest.skip(f"torch {subject.release} has no nccl2; it came with 2.14")
    with runner(subject.python) as found:
        yield found


@pytest.mark.parametrize("release", ["2.14.1", "2.15.0"])
def test_every_row_is_measured(release: str) -> None:
    assert [name for name, probe in _ROWS.items() if release not in probe.stock] == []


@pytest.mark.parametrize(
    ("name", "sound"),
    [
        ("abort-hangs", {"inject": [_ERROR], "until": "", "aborts": True}),
        ("abort-hangs-barrier-wait", {"inject": [_ERROR], "until": "", "aborts": True}),
        ("watchdog-hangs", {"inject": [_ERROR], "until": ""}),
        ("user-abort-hangs", {"inject": []}),
        ("user-abort-fails-stream", {"inject": []}),
        ("user-abort-watchdog-hangs", {"inject": [], "until": ""}),
        ("user-shutdown", {"timeout": 2}),
        ("user-delete-wait", {"how": "abort"}),
        ("launch-hangs", _ELSEWHERE),
        ("launch-hangs-send", _ELSEWHERE),
        ("launch-hangs-allocation", _ELSEWHERE),
        ("reconfigure-revoke-hangs", {"inject": [_ERROR]}),
        ("reconfigure-abort-hangs", {"inject": [_ERROR]}),
    ],
)
def test_row_that_fails_is_sound_without_its_fault(ready: Runner, name: str, sound: dict[str, object]) -> None:
    row = _ROWS[f"nccl2-{name}"]
    assert row.stock[_measured(ready)] is not Outcome.OK
    result = ready.run(replace(row, args={**row.args, **sound}, fires=()), Form.STOCK)
    assert result.got is Outcome.OK, (result.detail, result.output)


def _measured(ready: Runner) -> str:
    """Return the probed release, or the newest measured one."""
    known = _ROWS["nccl2-works"].stock
    return ready.subject.release if ready.subject.release in known else max(known)


def test_mode_that_is_not_set_ends_the_process(ready: Runner) -> None:
    """An empty value takes a variable away, and the default of nccl2 is not mode 2."""
    row = _ROWS["nccl2-pending-async-error"]
    assert ready.run(row, Form.STOCK).got is Outcome.OK
    unset = replace(row, environment={"TORCH_NCCL_ASYNC_ERROR_HANDLING": ""})
    assert ready.run(unset, Form.STOCK).got is Outcome.TERMINATED


def _create(ready: Runner, imitated: dict[str, str], blocking: int, seconds: float) -> str:
    command: list[str | Path] = [ready.subject.python, "-I", _CREATION, str(blocking)]
    output = subprocess.check_output(command, env=_variables(imitated), stderr=subprocess.DEVNULL, timeout=seconds)
    return output.decode()


def _variables(own: dict[str, str]) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2", **own}


def test_creation_without_the_peer_ends_when_it_does_not_block(ready: Runner, imitated: dict[str, str]) -> None:
    assert "DistBackendError: Failed to initialize NCCL communicator timed out" in _create(ready, imitated, 0, 60)


def test_creation_without_the_peer_has_no_limit_when_it_blocks(ready: Runner, imitated: dict[str, str]) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        _create(ready, imitated, 1, 20)


def _started(python: Path, environment: dict[str, str], rank: int, port: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [python, "-I", _DEATH, str(rank), str(port)],
        env={**environment, "NCCL_HOSTID": str(rank)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    )


def _said(rank: subprocess.Popen[bytes]) -> Any:
    assert rank.stdout is not None
    assert select.select([rank.stdout], [], [], 60)[0], "no answer"
    return json.loads(rank.stdout.readline())


def test_peer_killed_in_a_real_process_costs_its_world_alone(ready: Runner, imitated: dict[str, str]) -> None:
    """It is on another host, as far as NCCL knows. The caller aborts the world, and the other world goes on."""
    environment = _variables({**imitated, "GPULESS_NETWORK": "1"})
    dist = pytest.importorskip("torch.distributed", reason="the store of the two processes needs torch here")
    store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    with ExitStack() as stack:
        ranks = [_started(ready.subject.python, environment, rank, store.port) for rank in range(2)]
        for rank in ranks:
            stack.enter_context(rank)
            stack.callback(rank.kill)
        assert [_said(rank) for rank in ranks] == [[2.0] * 4] * 2
        ranks[1].kill()
        ranks[1].wait()
        assert ranks[0].stdin is not None
        ranks[0].stdin.write(b"\n")
        found = _said(ranks[0])
        assert found["own"] == [1.0] * 4
        assert "NCCL" in found["error"]
