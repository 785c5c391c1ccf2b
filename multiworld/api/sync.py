"""Collective operations of a group, waiting in the calling thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import ReduceOp

from multiworld.ops import collectives, exchanges, objects
from multiworld.ops.base import SyncBase

Tensors = Sequence[torch.Tensor]


class SyncCollectives(SyncBase):
    """The same operations, arguments and errors as the awaitable ones, each waiting in the calling thread.

    An interrupted wait (``KeyboardInterrupt``) means what a cancelled await means. While the backend works, it ends
    when the collective does; a second interrupt breaks the world to end it.
    """

    def broadcast(self, tensor: torch.Tensor, src: int, *, timeout: float | None = None) -> None:
        """``broadcast`` of the group, waiting in this thread."""
        self._run(timeout, collectives.broadcast, tensor, src)

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp = ReduceOp.SUM, *, timeout: float | None = None) -> None:
        """``all_reduce`` of the group, waiting in this thread."""
        self._run(timeout, collectives.all_reduce, tensor, op)

    def reduce(
        self, tensor: torch.Tensor, dst: int, op: ReduceOp = ReduceOp.SUM, *, timeout: float | None = None
    ) -> None:
        """``reduce`` of the group, waiting in this thread."""
        self._run(timeout, collectives.reduce, tensor, dst, op)

    def all_gather(self, tensors: Tensors, tensor: torch.Tensor, *, timeout: float | None = None) -> None:
        """``all_gather`` of the group, waiting in this thread."""
        self._run(timeout, collectives.all_gather, tensors, tensor)

    def all_gather_into_tensor(
        self, output: torch.Tensor, tensor: torch.Tensor, *, timeout: float | None = None
    ) -> None:
        """``all_gather_into_tensor`` of the group, waiting in this thread."""
        self._run(timeout, collectives.all_gather_into_tensor, output, tensor)

    def gather(
        self,
        tensor: torch.Tensor,
        gather_list: Tensors | None = None,
        dst: int = 0,
        *,
        timeout: float | None = None,
    ) -> None:
        """``gather`` of the group, waiting in this thread."""
        self._run(timeout, collectives.gather, tensor, gather_list, dst)

    def scatter(
        self,
        tensor: torch.Tensor,
        scatter_list: Tensors | None = None,
        src: int = 0,
        *,
        timeout: float | None = None,
    ) -> None:
        """``scatter`` of the group, waiting in this thread."""
        self._run(timeout, collectives.scatter, tensor, scatter_list, src)

    def reduce_scatter(
        self,
        output: torch.Tensor,
        input_list: Tensors,
        op: ReduceOp = ReduceOp.SUM,
        *,
        timeout: float | None = None,
    ) -> None:
        """``reduce_scatter`` of the group, waiting in this thread."""
        self._run(timeout, exchanges.reduce_scatter, output, input_list, op)

    def reduce_scatter_tensor(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        op: ReduceOp = ReduceOp.SUM,
        *,
        timeout: float | None = None,
    ) -> None:
        """``reduce_scatter_tensor`` of the group, waiting in this thread."""
        self._run(timeout, exchanges.reduce_scatter_tensor, output, tensor, op)

    def all_to_all(self, output_list: Tensors, input_list: Tensors, *, timeout: float | None = None) -> None:
        """``all_to_all`` of the group, waiting in this thread."""
        self._run(timeout, exchanges.all_to_all, output_list, input_list)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """``all_to_all_single`` of the group, waiting in this thread."""
        splits = output_split_sizes, input_split_sizes
        self._run(timeout, exchanges.all_to_all_single, output, tensor, *splits)

    def barrier(self, *, timeout: float | None = None) -> None:
        """``barrier`` of the group, waiting in this thread."""
        self._run(timeout, collectives.barrier)

    def monitored_barrier(self, *, timeout: float | None = None) -> None:
        """``monitored_barrier`` of the group, waiting in this thread."""
        self._run(timeout, collectives.barrier, "monitored_barrier")

    def broadcast_object(
        self, obj: Any = None, src: int = 0, *, allow: Sequence[type | str] = (), timeout: float | None = None
    ) -> Any:
        """``broadcast_object`` of the group, waiting in this thread."""
        return self._run(timeout, objects.broadcast_object, obj, src, allow)

    def all_gather_object(
        self, obj: Any, *, allow: Sequence[type | str] = (), timeout: float | None = None
    ) -> list[Any]:
        """``all_gather_object`` of the group, waiting in this thread."""
        gathered: list[Any] = self._run(timeout, objects.all_gather_object, obj, allow)
        return gathered

    def gather_object(
        self, obj: Any, dst: int = 0, *, allow: Sequence[type | str] = (), timeout: float | None = None
    ) -> list[Any] | None:
        """``gather_object`` of the group, waiting in this thread."""
        gathered: list[Any] | None = self._run(timeout, objects.gather_object, obj, dst, allow)
        return gathered

    def scatter_object(
        self,
        objs: Sequence[Any] | None = None,
        src: int = 0,
        *,
        allow: Sequence[type | str] = (),
        timeout: float | None = None,
    ) -> Any:
        """``scatter_object`` of the group, waiting in this thread."""
        return self._run(timeout, objects.scatter_object, objs, src, allow)
