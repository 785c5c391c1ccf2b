"""The backend `switchml`, between real processes, on a stand-in of the client library whose ranks really add up."""

from __future__ import annotations

import copy
import os
import shutil
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from procs import ROOT, cluster

from multiworld import InvalidArgument, switchml
from multiworld.lab.context import Context
from tests.once import once

from .stand_in.switch import Switch, build_shim, switch

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++ for the stand-in of the client library")
SECONDS = 20.0
Body = Callable[[int, int], Any]


@pytest.fixture(scope="session")
def shim(request: pytest.FixtureRequest) -> Path:
    return once(request, "switchml", build_shim)


class Job:
    """Ranks that run one function in a process group of the backend."""

    def __init__(self, shim: Path, store: str, folder: Path) -> None:
        self.shim, self.store, self.folder = shim, store, folder

    def run(self, body: Body, served: Switch | None, size: int = 2, backend: str = "switchml", **settings: Any) -> Any:
        """Run ``body(rank, size)`` on each rank; return the results."""
        given = {"library": self.shim, **settings}
        if served is not None:
            given["config"] = served.config(self.folder)
        with cluster() as c:
            for rank in range(size):
                c.start(_rank, body, self.store, rank, size, backend, given)
            return c.results(60)


@pytest.fixture
def job(shim: Path, store: str, tmp_path: Path) -> Job:
    return Job(shim, store, tmp_path)


def _rank(
    context: Context, body: Body, store: str, rank: int, size: int, backend: str, settings: dict[str, Any]
) -> Any:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    per_rank = settings.pop("per_rank", {})
    switchml.configure(**{**settings, **per_rank.get(rank, {})})
    try:
        dist.init_process_group(
            backend, init_method=store, rank=rank, world_size=size, timeout=timedelta(seconds=SECONDS)
        )
    except (switchml.SwitchMLError, InvalidArgument) as error:
        return error
    kept = [_keep(name) for name in ("all_reduce", "all_gather")]
    result = body(rank, size)
    if dist.is_initialized():
        dist.destroy_process_group()
    kept.clear()
    return result


def _keep(name: str) -> list[Any]:
    """Keep what is passed to a function of torch.distributed, in this process, which is the test's own.

    Releases up to 2.6 can hang where a group ends while one of Gloo's threads frees a tensor of Python.
    """
    call, kept = getattr(dist, name), list[Any]()

    def keeping(*args: Any, **named: Any) -> Any:
        kept.append(args)
        return call(*args, **named)

    setattr(dist, name, keeping)
    return kept


def _sums(rank: int, size: int) -> Any:
    """One of every kind of all-reduce; the results are right whoever did them."""
    total = size * (size + 1) // 2
    for dtype in (torch.float32, torch.int32, torch.float64, torch.int64, torch.float16):
        tensor = torch.full((3, 5), rank + 1, dtype=dtype)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [[total] * 5] * 3, dtype
    tensor = torch.tensor([rank + 1.0])
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    assert tensor.item() == size
    empty = torch.empty(0)
    dist.all_reduce(empty)
    across = torch.arange(6.0).reshape(2, 3).t()
    dist.all_reduce(across)
    assert across.tolist() == [[0.0, 3.0 * size], [1.0 * size, 4.0 * size], [2.0 * size, 5.0 * size]]
    weight = torch.nn.Parameter(torch.ones(4)[::2])
    dist.all_reduce(weight)
    assert weight.tolist() == [size, size]
    gathered = [torch.zeros(1) for _ in range(size)]
    dist.all_gather(gathered, torch.tensor([float(rank)]))
    assert [part.item() for part in gathered] == list(range(size))
    dist.barrier()
    return switchml.statistics(), dist.get_backend()


@pytest.mark.parametrize(("backend", "size"), [("switchml", 3), ("cpu:switchml", 2)])
def test_the_switch_does_what_it_can_and_gloo_the_rest(job: Job, backend: str, size: int) -> None:
    with switch(size) as served:
        for found, name in job.run(_sums, served, size, backend):
            assert name == backend
            assert (found.delegated, found.delegated_bytes) == (4, 4 * (15 + 15 + 6 + 2))
            assert found.gloo == {"dtype": 3, "operation": 1, "empty": 1}
            assert found.failed == 0
            assert found.seconds > 0
        assert served.jobs == [(15, torch.float32), (15, torch.int32), (6, torch.float32), (2, torch.float32)]


def _many(rank: int, size: int) -> Any:
    """Many at once, delegated and not, in one order of calls and another order of waits."""
    tensors = [
        torch.full((50 + n,), n * (rank + 1), dtype=torch.float64 if n % 3 == 0 else torch.float32) for n in range(30)
    ]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
        assert work.is_completed()
    total = size * (size + 1) // 2
    assert all(bool((tensor == n * total).all()) for n, tensor in enumerate(tensors))


def test_jobs_are_submitted_in_the_order_of_the_calls(job: Job) -> None:
    with switch(2) as served:  # it complains about jobs that differ between its workers
        job.run(_many, served)
        assert served.jobs == [(50 + n, torch.float32) for n in range(30) if n % 3]


class _Branches(torch.nn.Module):
    """Ranks use different parameters: DDP then also sums an int32 map of them, and waits for that from C++."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.both, self.one = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, use: bool) -> torch.Tensor:
        x = self.both(x)
        return self.one(x) if use else x


def _ddp(rank: int, size: int) -> Any:
    module = _Branches()
    alone = copy.deepcopy(module)
    for other in range(size):  # what every rank computes, summed by this one alone
        (alone(torch.full((2, 4), other + 1.0), other == 0).sum() / size).backward()
    model = torch.nn.parallel.DistributedDataParallel(module, find_unused_parameters=True)
    model(torch.full((2, 4), rank + 1.0), rank == 0).sum().backward()
    for ours, theirs in zip(module.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    from torch.distributed import _functional_collectives

    summed = _functional_collectives.all_reduce(torch.ones(7), "sum", dist.group.WORLD)
    assert summed.tolist() == [size] * 7


def test_ddp_and_functional_collectives_from_cpp(job: Job) -> None:
    with switch(2) as served:
        job.run(_ddp, served)
        assert torch.int32 in {dtype for _, dtype in served.jobs}
        assert sum(count for count, dtype in served.jobs if dtype is torch.float32) == 40 + 7


def _two_groups(rank: int, size: int) -> Any:
    pair = dist.new_group([0, 1])
    if rank < 2:
        tensor = torch.ones(2)
        dist.all_reduce(tensor, group=pair)
        assert tensor.tolist() == [2.0, 2.0]
    whole = torch.ones(2)
    dist.all_reduce(whole)
    assert whole.tolist() == [3.0, 3.0]
    return switchml.statistics().gloo


def test_a_second_group_uses_gloo_and_sums_over_its_own_members(job: Job) -> None:
    with switch(3) as served:
        found = job.run(_two_groups, served, 3)
        assert found == [{"no switch": 1}, {"no switch": 1}, {}]
        assert served.jobs == [(2, torch.float32)]


def _sum_three(rank: int, size: int) -> Any:
    """Three all-reduces; the error or the sum of each."""
    found: list[Any] = []
    for n in range(3):
        tensor = torch.full((4,), n + rank + 1.0)
        began = time.monotonic()
        try:
            dist.all_reduce(tensor)
            found.append(tensor.tolist())
        except switchml.SwitchMLError as error:
            assert time.monotonic() - began < SECONDS
            found.append(type(error))
    return found, switchml.statistics()


@pytest.mark.parametrize(
    ("faults", "kind"),
    [
        ({"fail": {1: {0, 1}}}, switchml.SwitchJobFailed),
        ({"stall": {1: {0, 1}}, "timeout": 0.5}, switchml.SwitchJobTimeout),
    ],
)
def test_a_job_that_the_switch_does_not_do_is_a_typed_error(job: Job, faults: Any, kind: type[Exception]) -> None:
    settings = {"timeout": faults.pop("timeout")} if "timeout" in faults else {}
    with switch(2, **faults) as served:
        for found, counts in job.run(_sum_three, served, **settings):
            assert found == [[3.0] * 4, kind, kind]
            assert (counts.delegated, counts.failed, counts.gloo) == (1, 2, {})
        assert len(served.jobs) == 2


@pytest.mark.parametrize("faults", [{"fail": {1: {1}}}, {"stall": {1: {0}}}, {"stall": {1: {0, 1}}}])
def test_gloo_repeats_it_on_all_ranks_if_asked(job: Job, faults: Any) -> None:
    """Also on those for which the switch did it: else some would wait for others in Gloo."""
    with switch(2, **faults) as served:
        for found, counts in job.run(_sum_three, served, failure="gloo", timeout=0.5):
            assert found == [[3.0] * 4, [5.0] * 4, [7.0] * 4]
            assert (counts.delegated, counts.failed) == (1, 0)
            assert counts.gloo == {"failure": 1, "after failure": 1}
        assert len(served.jobs) == 2


def _late(rank: int, size: int) -> Any:
    work = dist.all_reduce(torch.ones(3), async_op=True)
    assert not work.is_completed()
    with pytest.raises(TimeoutError):
        work.wait(timedelta(milliseconds=1))
    future = work.get_future()
    dist.destroy_process_group()
    with pytest.raises(switchml.SwitchMLClosed):
        work.wait()
    with pytest.raises(RuntimeError, match="SwitchMLClosed"):
        future.wait()


def test_destroying_the_group_ends_what_is_not_done(job: Job) -> None:
    with switch(2, stall={0: {0, 1}}) as served:
        job.run(_late, served)


def _again(rank: int, size: int) -> Any:
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    store = dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    try:
        dist.init_process_group("switchml", store=dist.PrefixStore("again", store), rank=rank, world_size=size)
    except switchml.SwitchMLUnavailable as error:
        first = error
    switchml.configure(missing="gloo")
    dist.init_process_group("switchml", store=dist.PrefixStore("third", store), rank=rank, world_size=size)
    dist.all_reduce(tensor)
    return str(first), tensor.tolist()


def test_the_client_library_starts_once_per_process(job: Job) -> None:
    with switch(2) as served:
        for text, sums in job.run(_again, served):
            assert "was started before in this process" in text
            assert sums == [4.0, 4.0]


@pytest.mark.parametrize(
    ("without", "said"),
    [
        ({"library": "/nowhere/shim.so"}, "there is no compiled shim /nowhere/shim.so"),
        ({"config": "/nowhere/switchml.cfg"}, "the configuration file /nowhere/switchml.cfg cannot be read"),
    ],
)
def test_a_rank_without_a_switch_is_an_error_on_all_ranks(job: Job, without: dict[str, str], said: str) -> None:
    with switch(2) as served:
        errors = job.run(_sum_three, served, per_rank={1: without})
    assert [type(error) for error in errors] == [switchml.SwitchMLUnavailable] * 2
    assert [error.ranks for error in errors] == [(1,), (1,)]
    assert said in str(errors[1])
    assert "ranks (1,)" in str(errors[0])
    assert "MULTIWORLD_SWITCHML_MISSING=gloo" in str(errors[0])


@pytest.mark.parametrize("without", [{"library": "/nowhere/shim.so"}, {"config": "/nowhere/switchml.cfg"}])
def test_gloo_does_it_all_if_a_rank_has_no_switch_and_that_was_asked_for(job: Job, without: dict[str, str]) -> None:
    with switch(2) as served:
        for found, counts in job.run(_sum_three, served, missing="gloo", per_rank={0: without}):
            assert found == [[3.0] * 4, [5.0] * 4, [7.0] * 4]
            assert counts.gloo == {"no switch": 3}
        assert served.jobs == []


def test_ranks_with_other_settings_are_told(job: Job) -> None:
    with switch(2) as served:
        errors = job.run(_sum_three, served, per_rank={1: {"failure": "gloo"}})
    assert [type(error) for error in errors] == [InvalidArgument] * 2
    assert "failure=" in str(errors[0])


#: A program that knows nothing of SwitchML, and ends without destroying its process group. It keeps its tensors for
#: ever: a program of stock torch is ended by SIGABRT if one of Gloo's threads has to free one while Python ends.
SCRIPT = """
import ctypes
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
a, b = torch.ones(1000), torch.ones(10, dtype=torch.float64)
for tensor in (a, b):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(tensor))
dist.all_reduce(a)
dist.all_reduce(b)
dist.monitored_barrier()
print(dist.get_backend(), int(a.sum()), int(b.sum()), sys.argv[1:], __name__)
"""


@pytest.mark.parametrize(
    "installed", [True, pytest.param(False, marks=pytest.mark.nightly("a run without the runner is plain torch"))]
)
def test_an_unmodified_script(shim: Path, tmp_path: Path, installed: bool) -> None:
    """Delegated where it can be, else Gloo; and not at all without the runner."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    runner = ["-m", "multiworld.switchml", "run"] if installed else []
    with switch(2) as served:
        environment = {
            **os.environ,
            "MULTIWORLD_SWITCHML_LIBRARY": str(shim),
            "MULTIWORLD_SWITCHML_CONFIG": str(served.config(tmp_path)),
            "PYTHONPATH": str(ROOT),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        outputs = _launch([sys.executable, *runner, str(script), "--epochs", "3"], environment)
        assert outputs == ["gloo 2000 20 ['--epochs', '3'] __main__\n"] * 2
        assert served.jobs == ([(1000, torch.float32)] if installed else [])


def _launch(command: list[str], environment: dict[str, str]) -> list[str]:
    """Run a command as two ranks, as launchers do; their outputs."""
    import socket
    import subprocess

    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    store = dist.TCPStore(
        "127.0.0.1", port, None, True, timedelta(seconds=30), False, master_listen_fd=listener.detach(), use_libuv=False
    )
    shared = {**environment, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    shared["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # the store is here: no rank has to host it
    ranks = [
        subprocess.Popen(command, env={**shared, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=90)[0] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0]
        return outputs
    finally:
        for rank in ranks:
            rank.kill()
        del store
