"""Programs on torch's own NCCL groups, for workers: two groups, in one thread, without multiworld."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from multiworld import TcpStoreAddress
from multiworld.backends.nccl_environment import NEEDED
from multiworld.lab.context import Context

_TIMEOUT = timedelta(seconds=60)


def open_group(context: Context, name: str, store: TcpStoreAddress, rank: int, device: str) -> None:
    """Be ``rank`` of two in a group of torch's own; its communicator is made by its first operation."""
    os.environ.update({one.name: one.value for one in NEEDED})
    torch.cuda.set_device(device)
    client = dist.TCPStore(store.host, store.port, None, False, _TIMEOUT)
    context.kept[name] = dist.ProcessGroupNCCL(dist.PrefixStore(name, client), rank, 2, _TIMEOUT)


def attempt(context: Context, name: str, operation: str, rank: int) -> str:
    """Run an operation of the table, and wait for its data; the name of what it raised, empty for nothing."""
    try:
        work = OPERATIONS[operation](context.kept[name], rank)
        work.wait()
        torch.cuda.current_stream().synchronize()
    except Exception as error:  # noqa: BLE001 - which exception it is is what is tested
        return type(error).__name__
    return ""


def total(context: Context, name: str, rank: int) -> list[float]:
    """Sum two numbers of each member."""
    mine = _tensor(1.0 + rank, 10.0 + rank)
    context.kept[name].allreduce([mine]).wait()
    found: list[float] = mine.cpu().tolist()
    return found


def start_shutdown(context: Context, name: str) -> None:
    """Shut a group down as ``destroy_process_group`` does, in a thread; it may have to wait for the peer."""
    thread = threading.Thread(target=context.kept[name]._shutdown, daemon=True)
    thread.start()
    context.kept[f"shutdown of {name}"] = thread


def is_shut_down(context: Context, name: str, seconds: float) -> bool:
    """Return whether that has returned, within so many seconds."""
    thread: threading.Thread = context.kept[f"shutdown of {name}"]
    thread.join(seconds)
    return not thread.is_alive()


def abort(context: Context, name: str) -> None:
    """Abort a group; before 2.6 that is its shutdown."""
    group = context.kept[name]
    getattr(group, "abort", group._shutdown)()


def _tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).to("cuda")


def _wrapped(backend: Any) -> Any:
    """The group as ``torch.distributed`` hands it out, for operations that only that has."""
    store = dist.PrefixStore("group", dist.HashStore())
    try:
        group = dist.ProcessGroup(store, 0, 2)
    except TypeError:  # up to 2.4 with options
        group = dist.ProcessGroup(store, 0, 2, dist.ProcessGroup.Options("nccl"))
    if hasattr(group, "_set_default_backend"):
        group._set_default_backend(dist.ProcessGroup.BackendType.NCCL)
    group._register_backend(torch.device("cuda"), dist.ProcessGroup.BackendType.NCCL, backend)
    return group


def _coalescing_manager(group: Any, rank: int) -> Any:
    group._start_coalescing()
    group.allreduce([_tensor(1)])
    return group._end_coalescing()


def _two() -> list[torch.Tensor]:
    return [_tensor(0), _tensor(0)]


#: each with the group and our rank; rank 0 sends what is sent, and is the root
OPERATIONS: dict[str, Callable[[Any, int], Any]] = {
    "all_reduce": lambda g, _: g.allreduce([_tensor(1)]),
    "all_reduce_coalesced": lambda g, _: g.allreduce_coalesced(_two()),
    "all_gather_into_tensor_coalesced": lambda g, _: _wrapped(g).allgather_into_tensor_coalesced(
        [_tensor(0, 0), _tensor(0, 0)], _two()
    ),
    "reduce_scatter_tensor_coalesced": lambda g, _: _wrapped(g).reduce_scatter_tensor_coalesced(
        _two(), [_tensor(1, 2), _tensor(3, 4)]
    ),
    "coalescing_manager": _coalescing_manager,
    "send": lambda g, r: g.recv([_tensor(0)], 0, 0) if r else g.send([_tensor(1)], 1, 0),
    "recv": lambda g, r: g.send([_tensor(1)], 0, 0) if r else g.recv([_tensor(0)], 1, 0),
    "gather": lambda g, r: g.gather([] if r else [_two()], [_tensor(1)], dist.GatherOptions()),
    "scatter": lambda g, r: g.scatter([_tensor(0)], [] if r else [_two()], dist.ScatterOptions()),
    "all_to_all": lambda g, _: g.alltoall(_two(), _two()),
    "all_to_all_single": lambda g, _: g.alltoall_base(_tensor(0, 0), _tensor(1, 2), [], []),
}
