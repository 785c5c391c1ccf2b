"""Who starts processes: torchrun and torch.multiprocessing, each with a kill; the manifests of clusters."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.multiprocessing as mp
import yaml
from procs import process_state, shared_pool, wait_until

from multiworld import MultiWorld
from tests.multiworld.faults.programs import ROOT, documented_commands, started

SECONDS = 240.0  # every process loads torch, on a busy machine for minutes
EXAMPLE = "examples/supervised.py"


@pytest.fixture
def mw() -> Iterator[MultiWorld]:
    with MultiWorld() as home:
        yield home


def processes(mw: MultiWorld, store: str, generation: int) -> list[int]:
    """The processes of the world ``workers`` by rank, once it is complete in that generation or a later one."""
    found: list[Any] = []

    def there() -> bool:
        listed = mw.sync.list(store, timeout=SECONDS)
        found[:] = [world for world in listed if world.complete and world.generation >= generation]
        return bool(found)

    wait_until(there, SECONDS, f"the world is not in generation {generation}")
    return [member.process for member in found[0].members]


def end(pids: list[int]) -> None:
    """Kill what is left."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_torchrun_starts_a_killed_worker_again(mw: MultiWorld, tcp_store: str) -> None:
    """One agent for each rank, since an agent ends all of its workers when one fails."""
    agent = ["-m", "torch.distributed.run", "--nproc-per-node=1", "--max-restarts=3", "--monitor-interval=0.1"]
    agent += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", EXAMPLE, "--pause=0.01"]
    commands = [[*agent, f"--rank={rank}", "--size=2", f"--store={tcp_store}"] for rank in range(2)]
    pids: list[int] = []
    with started(commands, {}) as (first, second):
        try:
            pids = processes(mw, tcp_store, 1)
            os.kill(pids[1], signal.SIGKILL)
            pids += (after := processes(mw, tcp_store, 2))
            assert after[0] == pids[0], "the other worker stays"
            assert after[1] != pids[1]
            first.until(r"rank 0 of 2, generation 2: 2$")
            second.until(r"rank 1 of 2, generation 2: 2$")
            for pid in after:
                os.kill(pid, signal.SIGTERM)  # ends in good order, which its agent takes for success
            assert [first.end(), second.end()] == [0, 0], f"{first}\n\n{second}"
        finally:
            end(pids)


def _spawned(local: int, rank: int, store: str) -> None:
    """Do what the example does, in a process of ``mp.spawn``."""
    sys.argv = [EXAMPLE, f"--rank={rank}", "--size=2", f"--store={store}", "--pause=0.01"]
    sys.path.insert(0, str(ROOT / "examples"))
    __import__("supervised").main()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.nightly("test_the_commands_of_the_example kills and starts the same program; to spawn it is torch's own")
def test_a_killed_process_of_mp_spawn_is_started_again(mw: MultiWorld, tcp_store: str) -> None:
    """One ``spawn`` for each rank: its ``join`` ends all of its processes when one fails."""

    def spawn(rank: int) -> Any:
        return mp.spawn(_spawned, args=(rank, tcp_store), nprocs=1, join=False)

    pids: list[int] = []
    contexts = [spawn(0), spawn(1)]
    try:
        pids = processes(mw, tcp_store, 1)
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(mp.ProcessExitedException):
            contexts[1].join(SECONDS)
        contexts[1] = spawn(1)
        pids += (after := processes(mw, tcp_store, 2))
        assert after[0] == pids[0]
        for pid in after:
            os.kill(pid, signal.SIGTERM)
        for context in contexts:
            wait_until(lambda context=context: context.join(1.0), SECONDS, "it does not end")  # type: ignore[misc]
    finally:
        end(pids)
        wait_until(lambda: all(process_state(pid) in "XZ" for pid in pids), SECONDS, "a process is left")


def test_the_commands_of_the_example() -> None:
    """As its docstring says: a worker is killed and started again, and SIGTERM ends both in good order.

    The other rows start processes that load torch themselves.
    """
    commands = [[*command, "--pause=0.01", "--http=127.0.0.1:0"] for command in documented_commands(EXAMPLE)]
    with started(commands, {}, pool=shared_pool()) as (first, second):
        first.until(r"serving http://127\.0\.0\.1:\d+")
        first.until(r"rank 0 of 2, generation 1: 2$")
        os.kill(second.process, signal.SIGKILL)
        first.until("PeerLost: rank 1")
        with started(commands[1:], {}, pool=shared_pool()) as (again,):
            again.until(r"rank 1 of 2, generation 2: 2$")
            first.until(r"rank 0 of 2, generation 2: 2$")
            os.kill(again.process, signal.SIGTERM)
            assert again.end() == 0, str(again)
        assert '"event": "WorldJoined"' in str(first)
        os.kill(first.process, signal.SIGTERM)  # it waits for the other one
        assert first.end() == 0, str(first)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ray_starts_a_killed_actor_again() -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install ray")
    patient = {"RAY_raylet_start_wait_time_s": "300"}  # Ray gives its own processes 30 s to start
    with started([["examples/ray_workers.py"]], patient) as (program,):
        program.until("2 nodes")
        program.until("generation 1: 2$")
        program.until(r"generation 2: 4, \d+\.\d+ s after its restart")
        program.until("generation 2: 4$")
        assert program.end() == 0, str(program)


#: plays srun: one process for each task, with Slurm's variables
SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
for SLURM_PROCID in $(seq 0 $((SLURM_NTASKS - 1))); do export SLURM_PROCID; "$@" & done
wait
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_slurm_starts_a_killed_task_again(mw: MultiWorld, tmp_path: Path) -> None:
    """The script as it is, run as Slurm runs it but for ``srun``: a copy elsewhere, with the variables of the job."""
    copy = tmp_path / "slurm_script"
    copy.write_bytes((ROOT / "examples" / "slurm" / "supervised.sbatch").read_bytes())
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    job = {
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": "2",
        "MULTIWORLD_PYTHON": sys.executable,
    }
    job |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", "MULTIWORLD_PYTHON": sys.executable}
    command = [str(copy), "--pause=0.01", "--rounds=100000"]
    pids: list[int] = []
    with started([command], job, python=Path("/bin/bash")) as (script,):
        try:
            script.until("rank 0 of 2, generation 1: 2$")
            store = (tmp_path / "multiworld-7.store").read_text().strip()
            pids = processes(mw, store, 1)
            os.kill(pids[1], signal.SIGKILL)
            pids += (after := processes(mw, store, 2))
            assert after[0] == pids[0]
            assert after[1] != pids[1]
            for pid in after:
                os.kill(pid, signal.SIGTERM)
            assert script.end() == 0, str(script)
        finally:
            end(pids)


def test_the_kubernetes_example_fits_together() -> None:
    """``nox -s lint`` checks it against Kubernetes' own schemas; here, that its parts mean the same."""
    documents = yaml.safe_load_all((ROOT / "examples" / "kubernetes" / "statefulset.yaml").read_text(encoding="utf-8"))
    named = {(one["kind"], one["metadata"]["name"]): one["spec"] for one in documents}
    workers, service = named["StatefulSet", "multiworld-workers"], named["Service", "multiworld-workers"]
    (worker,) = workers["template"]["spec"]["containers"]
    assert f"--size={workers['replicas']}" in worker["command"]
    assert workers["podManagementPolicy"] == "Parallel"
    assert workers["serviceName"] == "multiworld-workers"
    assert service["publishNotReadyAddresses"]
    assert service["selector"] == workers["selector"]["matchLabels"] == workers["template"]["metadata"]["labels"]
    (port,) = worker["ports"]
    assert worker["readinessProbe"]["httpGet"] == {"path": "/ready", "port": port["name"]}
    assert f"--http=0.0.0.0:{port['containerPort']}" in worker["command"]
    (store,) = named["Service", "multiworld-store"]["ports"]
    assert f"--store=tcp://multiworld-store:{store['port']}" in worker["command"]
    ranks = {one["name"]: one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath") for one in worker["env"]}
    assert ranks["RANK"] == "metadata.labels['apps.kubernetes.io/pod-index']"
    (holder,) = named["Deployment", "multiworld-store"]["template"]["spec"]["containers"]
    compile(holder["command"][-1], "store", "exec")
    assert named["Deployment", "multiworld-store"]["strategy"] == {"type": "Recreate"}
