"""What torch has on top of process groups runs on a world, row by row, in two processes; and it ends well if one dies.

The rows share their processes: what torch loads for them takes longer than all of them.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.multiworld.process_groups import rows
from tests.multiworld.process_groups.stage import Stage, staged

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
    "compiled_ddp",
    "refused_by_name",
)
SLOW = ("inductor",)
#: row, and the operation at whose start a member is killed
DEATHS = (("ddp", 6), ("fsdp2", 4), ("functional", 2), ("power_sgd", 12), ("checkpoint", 2), ("objects", 2))
HELPERS = {"model", "batch", "checksum", "alone", "trained", "same", "_compiled"}
#: a death shows at once; the rest is for machines with much else to do
SOON = 10.0


def run(stage: Stage, names: tuple[str, ...]) -> None:
    for name in names:
        began = time.monotonic()
        stage.tell(("row", name))
        print(f"{name}: {stage.hear()} operations, {time.monotonic() - began:.2f} s")


@pytest.mark.slow
def test_rows(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        run(stage, QUICK)


@pytest.mark.slow
@pytest.mark.nightly("the row `compiled` of test_rows")
def test_slow_rows(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        run(stage, SLOW)


@pytest.mark.slow
def test_deaths(tmp_path: Path) -> None:
    """Each ends with an error that names the dead member, and the next row runs with a replacement."""
    with staged(tmp_path) as stage:
        for name, at in DEATHS:
            stage.tell(("survive", name), ("die", name, at))
            stage.members[1].exit_code()
            died = time.monotonic()
            ranks, text, noticed = stage.members[0].recv()
            print(f"{name}: {noticed - died:.3f} s after the death was seen: {text.splitlines()[0]}")
            assert ranks == (1,)
            assert "rank 1" in text
            assert noticed - died < SOON
            stage.replace(1)
            run(stage, ("collectives",))


def test_every_row_is_run() -> None:
    text = Path(rows.__file__).read_text(encoding="utf-8")
    names = [line.partition("(")[0].removeprefix("def ") for line in text.splitlines() if line.startswith("def ")]
    assert set(names) - HELPERS == {*QUICK, *SLOW}
