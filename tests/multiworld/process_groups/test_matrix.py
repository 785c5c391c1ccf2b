"""What torch has on top of process groups runs on a world, row by row, in two processes; and it ends well if one dies.

The rows share their processes: what torch loads for them takes longer than all of them.
"""

from __future__ import annotations

import re
import time
import warnings
from pathlib import Path

import pytest
import torch

from tests.multiworld.faults.programs import started
from tests.multiworld.process_groups import rows
from tests.multiworld.process_groups.stage import Stage, preloaded

QUICK = (
    "collectives",
    "not_contiguous",
    "futures",
    "nested_future",
    "out_of_order_futures",
    "nobody_waits",
    "messages",
    "objects",
    "subgroups",
    "coalesced",
    "ddp",
    "ddp_in_buckets",
    "comm_hooks",
    "power_sgd",
    "zero",
    "join",
    "autograd_functions",
    "profiler",
    "fsdp2",
    "hsdp",
    "device_mesh",
    "dtensor",
    "tensor_parallel",
    "pipelining",
    "checkpoint",
    "checkpoint_in_the_background",
    "functional",
    "compiled",
    "refused_by_name",
)
SLOW = ("compiled_ddp", "inductor")
#: row, and the operation at whose start a member is killed
DEATHS = (("ddp", 7), ("ddp_in_buckets", 9), ("fsdp2", 9), ("functional", 2), ("checkpoint", 2))
MORE_DEATHS = (
    ("hsdp", 3),
    ("power_sgd", 16),
    ("comm_hooks", 13),
    ("zero", 14),
    ("join", 12),
    ("autograd_functions", 2),
    ("device_mesh", 1),
    ("dtensor", 3),
    ("tensor_parallel", 4),
    ("pipelining", 6),
    ("objects", 2),
    ("messages", 3),
    ("checkpoint_in_the_background", 5),
    ("futures", 2),
    ("compiled", 2),
    ("compiled_ddp", 7),
)
#: those that raise in a callback of a future, of which torch makes a RuntimeError (``typed`` gives the type back);
#: a death that is noticed before the operation begins is raised by its call
IN_CALLBACKS = ("ddp", "ddp_in_buckets", "compiled_ddp", "power_sgd", "futures")
HELPERS = {"device", "fsdp_on_cpu", "model", "batch", "checksum", "alone", "trained", "same", "_compiled"}
#: a death shows at once; the rest is for machines with much else to do
SOON = 10.0


def run(stage: Stage, names: tuple[str, ...]) -> set[str]:
    """Run these rows; those that this release of torch has nothing for, each with a warning that says why."""
    missing = set()
    for name in names:
        stage.tell(("row", name))
        for reason in {answer for answer in stage.hear() if isinstance(answer, str)}:
            warnings.warn(f"{name} was not run: {reason}", stacklevel=1)
            missing.add(name)
    return missing


def die(stage: Stage, deaths: tuple[tuple[str, int], ...]) -> None:
    """Each ends with an error that names the dead member, and the next row runs with a replacement."""
    for name, at in deaths:
        stage.tell(("survive", name), ("die", name, at))
        stage.members[1].exit_code()
        died = time.monotonic()
        ranks, raised, text, noticed = stage.members[0].recv()
        if rows.RELEASE >= (2, 4):  # before, other operations have these numbers
            assert raised in ("PeerLost", "RuntimeError" if name in IN_CALLBACKS else "PeerLost"), name
        assert ranks == (1,)
        assert "rank 1" in text
        assert noticed - died < SOON
        stage.replace(1)
        run(stage, ("collectives",))


@pytest.mark.slow
def test_rows(tmp_path: Path) -> None:
    with preloaded(tmp_path / "log") as pool:
        stage = Stage(pool, tmp_path, 2)
        missing = run(stage, QUICK)
        assert not missing or rows.RELEASE < (2, 7)
        die(stage, tuple(death for death in DEATHS if death[0] not in missing))
        with started([["examples/ddp_recovers.py"]], {}, pool=pool) as (program,):
            assert program.end() == 0, str(program)
            assert "rank 2 was killed in step 5" in str(program)
            weights = re.findall(r"rank \d of 3: done in generation 2, weights (\d+[.]\d+)", str(program))
            assert (len(weights), len(set(weights))) == (3, 1), str(program)


@pytest.mark.slow
@pytest.mark.nightly("the rows of test_rows")
def test_slow_rows(tmp_path: Path) -> None:
    with preloaded(tmp_path / "log") as pool:
        stage = Stage(pool, tmp_path, 2)
        run(stage, SLOW)
        die(stage, tuple(death for death in MORE_DEATHS if not run(stage, death[:1])))
        with started([["examples/ddp_recovers.py", "--without-replacement"]], {}, pool=pool) as (program,):
            assert program.end() == 0, str(program)
            weights = re.findall(r"rank \d of 2: done in generation 2, weights (\d+[.]\d+)", str(program))
            assert (len(weights), len(set(weights))) == (2, 1), str(program)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here; nothing about one is shown")
@pytest.mark.parametrize("backend", ["nccl", "torch-nccl"])
def test_rows_on_a_device(tmp_path: Path, backend: str) -> None:
    with preloaded(tmp_path / "log") as pool:
        stage = Stage(pool, tmp_path, 2, backend)
        run(stage, QUICK)
        die(stage, DEATHS)


def test_every_row_is_run() -> None:
    text = Path(rows.__file__).read_text(encoding="utf-8")
    names = [line.partition("(")[0].removeprefix("def ") for line in text.splitlines() if line.startswith("def ")]
    assert set(names) - HELPERS == {*QUICK, *SLOW}
