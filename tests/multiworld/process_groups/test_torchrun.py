"""torchrun provides rank, size and store, and a world is the default process group."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.multiworld.procs import ROOT

PROGRAM = """
import torch, torch.distributed as dist
import multiworld.torch

dist.init_process_group("multiworld")
total = torch.full((3,), dist.get_rank() + 1.0)
dist.all_reduce(total)
part = dist.new_group([0, 1], pg_options=multiworld.torch.Options(subgroups="share"))
assert part.world is dist.group.WORLD.world
dist.all_reduce(total, group=part)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {total[0]:g}, {dist.get_backend()}", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.nightly("test_process_group.py::test_init_process_group")
def test_torchrun(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n"))[1:] == [f"rank {rank} of 2: 6, multiworld" for rank in range(2)]
