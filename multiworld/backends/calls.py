"""Calls of the operations on a process group of torch, the same for every backend."""
# ruff: noqa: ARG002 - `after` belongs to the interface; a CPU has no stream to wait in

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist


class ProcessGroupCalls:
    """The operations of ``Driver`` on one process group, which a subclass makes in ``open`` and drops in ``close``.

    The group takes CPU tensors, so there is no stream to wait for and ``after`` is not looked at.
    """

    on_device = False

    _group: Any = None

    def broadcast(self, tensor: torch.Tensor, root: int, *, after: Any = None) -> Any:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        return self._group.broadcast([tensor], options)

    def all_reduce(self, tensor: torch.Tensor, op: Any, *, after: Any = None) -> Any:
        options = dist.AllreduceOptions()
        options.reduceOp = op
        return self._group.allreduce([tensor], options)

    def reduce(self, tensor: torch.Tensor, root: int, op: Any, *, after: Any = None) -> Any:
        options = dist.ReduceOptions()
        options.reduceOp, options.rootRank = op, root
        return self._group.reduce([tensor], options)

    def all_gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, *, after: Any = None) -> Any:
        return self._group.allgather([list(outputs)], [tensor])

    def gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, root: int, *, after: Any = None) -> Any:
        options = dist.GatherOptions()
        options.rootRank = root
        return self._group.gather([list(outputs)] if outputs else [], [tensor], options)

    def scatter(self, output: torch.Tensor, tensors: Sequence[torch.Tensor], root: int, *, after: Any = None) -> Any:
        options = dist.ScatterOptions()
        options.rootRank = root
        return self._group.scatter([output], [list(tensors)] if tensors else [], options)

    def all_to_all(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        *,
        after: Any = None,
    ) -> Any:
        return self._group.alltoall_base(
            output, tensor, list(output_splits), list(input_splits), dist.AllToAllOptions()
        )

    def reduce_scatter(self, output: torch.Tensor, tensor: torch.Tensor, op: Any, *, after: Any = None) -> Any:
        """Refused: not every release of Gloo has one; an all-to-all and a sum do it."""
        raise NotImplementedError("this backend has no reduce-scatter")

    def send(self, tensor: torch.Tensor, peer: int, *, after: Any = None) -> Any:
        return self._group.send([tensor], peer, 0)

    def recv(self, tensor: torch.Tensor, peer: int, *, after: Any = None) -> Any:
        return self._group.recv([tensor], peer, 0)

    def join(self, work: Any) -> None:
        """Nothing to do: no stream waits for the work of a CPU."""
