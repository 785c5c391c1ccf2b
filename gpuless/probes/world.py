"""Worlds of two ranks; only rank 0 exists: each a real ProcessGroupNCCL on its own communicators."""

from __future__ import annotations

import datetime
import gc
from collections.abc import Callable
from typing import Any, TypeAlias

import fake
import torch
import torch.distributed as dist

# What torch hands out: its classes and their methods differ between releases.
TorchObject: TypeAlias = Any

DEVICE = torch.device("cuda:0")
# Worlds outlive the program: what their destructors do is a matter of the probes about them alone.
_KEPT: list[World] = []
TIMEOUT = datetime.timedelta(seconds=120)


def tensor(*values: float) -> torch.Tensor:
    """Return a tensor on the imitated device; made on the CPU and copied, since kernels do not run."""
    return torch.tensor(values, dtype=torch.float32).to(DEVICE)


class World:
    """A process group with its own store (default: one that it hosts), and the communicators made for it."""

    def __init__(
        self, backend: str = "classic", timeout: datetime.timedelta = TIMEOUT, store: TorchObject | None = None
    ) -> None:
        self.store = store or dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
        before = fake.comms()
        prefixed = dist.PrefixStore("world", self.store)
        classic = backend == "classic"
        self.group = dist.ProcessGroupNCCL(prefixed, 0, 2, timeout) if classic else make_nccl2(prefixed, timeout)
        self.comms = set(range(before, fake.comms()))  # nccl2 makes its communicator here
        _KEPT.append(self)

    def run(self, operation: str) -> TorchObject:
        """Run one operation, wait for it as far as the caller would, and return its work object."""
        before = fake.comms()
        try:
            work = OPERATIONS[operation](self.group)
            if hasattr(work, "wait"):
                work.wait()
        finally:
            self.comms.update(range(before, fake.comms()))
        return work

    def start(self, operation: str) -> TorchObject:
        return OPERATIONS[operation](self.group)

    def next_in_region(self) -> None:
        """Run an operation of an open coalescing region: it is queued."""
        self.group.allreduce([tensor(1, 2)])

    def is_aborted(self) -> bool:
        return bool(self.comms) and all(map(fake.is_aborted, self.comms))


def settle() -> None:
    """Wait for the device, and let torch's allocator take back what it was used for.

    The allocator asks for the events of freed tensors whenever memory is allocated: a fault that is injected into the
    events of one world would hit whoever allocates.
    """
    torch.cuda.synchronize()
    tensor(0)


def forget(world: World) -> None:
    """Give up the reference that keeps a world to the end."""
    _KEPT.remove(world)


def delete(world: World) -> None:
    forget(world)
    world.group = None
    gc.collect()


def make_nccl2(
    store: TorchObject, timeout: datetime.timedelta, lazy: bool = False, reconfigure: bool = False
) -> TorchObject:
    """Return rank 0 of a group of two of nccl2, whose constructor differs between 2.14 and 2.15.

    Args:
        timeout: the limit of its operations.
        lazy: make the communicator with the first operation, as 2.14 always does; else, from 2.15, here.
        reconfigure: make no communicator before `reconfigure()`, and revoke a broken one instead of aborting it.
    """
    from torch._C._distributed_c10d import ProcessGroupNCCL2

    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    options.enable_reconfigure = reconfigure
    if lazy and hasattr(options, "lazy_init"):
        options.lazy_init = True
    try:
        return ProcessGroupNCCL2(store, 0, 2, options, DEVICE)
    except TypeError:  # 2.14 takes the device of the first tensor
        return ProcessGroupNCCL2(store, 0, 2, options)


def split_from(parent: TorchObject, store: TorchObject) -> TorchObject:
    """Return a process group whose communicator is split from another one's."""
    options = dist.ProcessGroupNCCL.Options()
    options.split_from = parent
    options.split_color = 1
    return dist.ProcessGroupNCCL(store, 0, 2, options)


def wrapped(backend: TorchObject) -> TorchObject:
    """Wrap a backend the way torch.distributed does, for what only the wrapper has."""
    store = dist.PrefixStore("group", dist.HashStore())
    try:
        group = dist.ProcessGroup(store, 0, 2)
    except TypeError:  # up to 2.4 with the options of the group
        group = dist.ProcessGroup(store, 0, 2, dist.ProcessGroup.Options("nccl"))
    if hasattr(group, "_set_default_backend"):
        group._set_default_backend(dist.ProcessGroup.BackendType.NCCL)
    group._register_backend(DEVICE, dist.ProcessGroup.BackendType.NCCL, backend)
    return group


def _coalescing_manager(backend: TorchObject) -> TorchObject:
    backend._start_coalescing()
    if torch.__version__.startswith("2.0."):  # its manager ends the region whatever happens, and gives it the works
        works: list[TorchObject] = []
        try:
            works.append(backend.allreduce([tensor(1)]))
        finally:
            backend._end_coalescing(works)
        return works[0]
    backend.allreduce([tensor(1)])
    return backend._end_coalescing()


OPERATIONS: dict[str, Callable[[TorchObject], TorchObject]] = {
    "all_reduce": lambda g: g.allreduce([tensor(1, 2)]),
    "all_gather": lambda g: g.allgather([[tensor(0), tensor(0)]], [tensor(1)]),
    "broadcast": lambda g: g.broadcast([tensor(1, 2)], dist.BroadcastOptions()),
    "reduce": lambda g: g.reduce([tensor(1, 2)], dist.ReduceOptions()),
    "reduce_scatter": lambda g: g.reduce_scatter([tensor(0)], [[tensor(1), tensor(2)]]),
    "all_reduce_coalesced": lambda g: g.allreduce_coalesced([tensor(1), tensor(2)]),
    "all_gather_into_tensor_coalesced": lambda g: wrapped(g).allgather_into_tensor_coalesced(
        [tensor(0, 0), tensor(0, 0)], [tensor(1), tensor(2)]
    ),
    "reduce_scatter_tensor_coalesced": lambda g: wrapped(g).reduce_scatter_tensor_coalesced(
        [tensor(0), tensor(0)], [tensor(1, 2), tensor(3, 4)]
    ),
    "coalescing_manager": _coalescing_manager,
    "send": lambda g: g.send([tensor(1)], 1, 0),
    "recv": lambda g: g.recv([tensor(0)], 1, 0),
    "gather": lambda g: g.gather([[tensor(0), tensor(0)]], [tensor(1)], dist.GatherOptions()),
    "scatter": lambda g: g.scatter([tensor(0)], [[tensor(1), tensor(2)]], dist.ScatterOptions()),
    "all_to_all": lambda g: g.alltoall([tensor(0), tensor(0)], [tensor(1), tensor(2)]),
    "all_to_all_single": lambda g: g.alltoall_base(tensor(0, 0), tensor(1, 2), [], []),
    "all_to_all_single_uneven": lambda g: g.alltoall_base(tensor(0, 0, 0), tensor(1, 2, 3), [1, 2], [2, 1]),
    "barrier": lambda g: g.barrier(),
}
