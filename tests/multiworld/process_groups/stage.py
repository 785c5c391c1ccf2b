"""Members of one world, each a process whose default process group it is, and which does what it is told."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from procs import ROOT

from multiworld import MultiWorld, PeerLost
from multiworld.lab.workers import Worker, WorkerPool
from multiworld.torch import WorldProcessGroup
from tests.multiworld.process_groups import rows

#: what rows and torch import late: here once, not in each member
PRELOAD = (
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.checkpoint",
    "torch.distributed.pipelining",
    "tests.multiworld.process_groups.rows",
)
PATIENCE = 120.0


class Stage:
    """The members, by rank; on one NVIDIA device if ``backend`` is one for it."""

    def __init__(self, pool: WorkerPool, folder: Path, size: int, backend: str = "gloo") -> None:
        self._pool, self._folder, self.size, self._backend = pool, folder, size, backend
        self.members: list[Worker] = []
        for rank in range(size):
            self.members.append(self.start(rank))
        self.hear()

    def start(self, rank: int) -> Worker:
        """Start the member of that rank."""
        return self._pool.run(live, rank, self.size, str(self._folder), self._backend)

    def tell(self, *orders: tuple[Any, ...]) -> None:
        """Give each member its order, or all the same."""
        for rank, member in enumerate(self.members):
            member.send(orders[rank % len(orders)])

    def hear(self) -> list[Any]:
        """Return the answers, by rank; what a member raised is raised here."""
        return [member.recv(PATIENCE) for member in self.members]

    def replace(self, rank: int) -> None:
        """Let another process take the place of a dead member, and all go on in the next generation."""
        assert self.members[rank].exit_code() == -signal.SIGKILL
        self._pool.dismiss(self.members[rank])
        self.members[rank] = self.start(rank)
        for other, member in enumerate(self.members):
            if other != rank:
                member.send(("rejoin",))
        self.hear()


@contextlib.contextmanager
def preloaded(log: Path) -> Iterator[WorkerPool]:
    """Have a pool whose processes have loaded what rows and torch import; what they write is shown if the block
    fails."""
    here = [name for name in PRELOAD if importlib.util.find_spec(name)]  # older releases lack some
    with WorkerPool(log, (str(ROOT), str(Path(__file__).parents[1])), here) as pool:
        try:
            yield pool
        except BaseException:
            sys.stderr.write(log.read_text(errors="replace")[-20_000:])
            raise


# in the members


def live(context: Any, rank: int, size: int, folder: str, backend: str) -> None:
    """Be a member until it is told nothing."""
    device = "cpu" if backend == "gloo" else "cuda:0"
    hosts = {} if backend == "gloo" else {"NCCL_HOSTID": f"member-{rank}"}  # NCCL takes one device for several hosts
    os.environ.update({"ROWS_FOLDER": folder, "ROWS_DEVICE": torch.device(device).type, **hosts})
    torch.set_default_device(device)
    store = f"file://{folder}/store"
    with MultiWorld() as mw:
        world = mw.sync.join("stage", rank, size, store=store, backend=backend, device=device, op_timeout=60.0)
        pg = world.process_group_as_default()
        context.send(pg.generation)
        while order := context.recv(600.0):
            context.send(ORDERS[order[0]](pg, *order[1:]))


def run_row(pg: WorldProcessGroup, name: str) -> int | str:
    """Run a row; the number of operations that it began, or what torch lacks for it."""
    try:
        with counted(lambda _: None) as count:
            getattr(rows, name)()
    except (rows.MissingError, ImportError) as missing:  # older releases have no module for it yet
        return str(missing)
    pg.barrier().wait()
    return count[0]


def run_row_and_die(_: WorldProcessGroup, name: str, at: int) -> None:
    """Begin a row, and be killed where it begins its operation number ``at``."""

    def die(number: int) -> None:
        if number == at:
            os.kill(os.getpid(), signal.SIGKILL)

    with counted(die):
        getattr(rows, name)()
    raise AssertionError(f"{name} begins fewer than {at} operations")


def run_row_and_survive(pg: WorldProcessGroup, name: str) -> tuple[tuple[int, ...], str, str, float]:
    """Run a row whose peer dies: the ranks that the typed error names, what was raised and its text, and when."""
    try:
        with pg.typed():
            getattr(rows, name)()
    except PeerLost as lost:
        original = lost.__cause__ or lost
        return lost.ranks, type(original).__name__, str(original), time.monotonic()
    raise AssertionError(f"{name} ended well")


def rejoin(pg: WorldProcessGroup) -> int:
    """Go on with a replacement, with torch.distributed's tables as it has them."""
    pg.rejoin()
    dist.destroy_process_group()
    pg.become_default()
    return pg.generation


@contextlib.contextmanager
def counted(tell: Any) -> Iterator[list[int]]:
    """Count the operations of process groups that are begun."""
    count, begin = [0], WorldProcessGroup._begin

    def counting(pg: WorldProcessGroup, *args: Any) -> Any:
        count[0] += 1
        tell(count[0])
        return begin(pg, *args)

    WorldProcessGroup._begin = counting  # type: ignore[method-assign]
    try:
        yield count
    finally:
        WorldProcessGroup._begin = begin  # type: ignore[method-assign]


ORDERS = {"row": run_row, "die": run_row_and_die, "survive": run_row_and_survive, "rejoin": rejoin}
