"""How the operations are called on a process group of torch: the same for every backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist


class ProcessGroupCalls:
    """The operations of ``Driver`` on one process group, which a subclass makes in ``open`` and drops in ``close``."""

    _group: Any = None

    def broadcast(self, tensor: torch.Tensor, root: int) -> Any:
        """Start a broadcast."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        return self._group.broadcast([tensor], options)

    def all_reduce(self, tensor: torch.Tensor, op: Any) -> Any:
        """Start an all-reduce in place."""
        options = dist.AllreduceOptions()
        options.reduceOp = op
        return self._group.allreduce([tensor], options)

    def reduce(self, tensor: torch.Tensor, root: int, op: Any) -> Any:
        """Start a reduce in place."""
        options = dist.ReduceOptions()
        options.reduceOp, options.rootRank = op, root
        return self._group.reduce([tensor], options)

    def all_gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> Any:
        """Start an all-gather."""
        return self._group.allgather([list(outputs)], [tensor])

    def gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, root: int) -> Any:
        """Start a gather."""
        options = dist.GatherOptions()
        options.rootRank = root
        return self._group.gather([list(outputs)] if outputs else [], [tensor], options)

    def scatter(self, output: torch.Tensor, tensors: Sequence[torch.Tensor], root: int) -> Any:
        """Start a scatter."""
        options = dist.ScatterOptions()
        options.rootRank = root
        return self._group.scatter([output], [list(tensors)] if tensors else [], options)

    def all_to_all(
        self, output: torch.Tensor, tensor: torch.Tensor, output_splits: Sequence[int], input_splits: Sequence[int]
    ) -> Any:
        """Start an all-to-all."""
        return self._group.alltoall_base(
            output, tensor, list(output_splits), list(input_splits), dist.AllToAllOptions()
        )
