"""Calls of the operations on a process group of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist


class ProcessGroupCalls:
    """Operations on one process group of torch, as ``Driver`` has them."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def broadcast(self, tensor: torch.Tensor, root: int) -> Any:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        return self._group.broadcast([tensor], options)

    def all_reduce(self, tensor: torch.Tensor, op: Any) -> Any:
        options = dist.AllreduceOptions()
        options.reduceOp = op
        return self._group.allreduce([tensor], options)

    def reduce(self, tensor: torch.Tensor, root: int, op: Any) -> Any:
        options = dist.ReduceOptions()
        options.reduceOp, options.rootRank = op, root
        return self._group.reduce([tensor], options)

    def all_gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> Any:
        return self._group.allgather([list(outputs)], [tensor])

    def gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, root: int) -> Any:
        options = dist.GatherOptions()
        options.rootRank = root
        return self._group.gather([list(outputs)] if outputs else [], [tensor], options)

    def scatter(self, output: torch.Tensor, tensors: Sequence[torch.Tensor], root: int) -> Any:
        options = dist.ScatterOptions()
        options.rootRank = root
        return self._group.scatter([output], [list(tensors)] if tensors else [], options)

    def all_to_all(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
    ) -> Any:
        return self._group.alltoall_base(
            output, tensor, list(output_splits), list(input_splits), dist.AllToAllOptions()
        )

    def send(self, tensor: torch.Tensor, peer: int) -> Any:
        return self._group.send([tensor], peer, 0)

    def recv(self, tensor: torch.Tensor, peer: int) -> Any:
        return self._group.recv([tensor], peer, 0)
