"""Collective operations of a group, to be awaited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import ReduceOp

from multiworld.operations import collectives, exchanges, objects
from multiworld.operations.base import GroupBase

Tensors = Sequence[torch.Tensor]


class AsyncCollectives(GroupBase):
    """Collectives; ``Group`` says what they have in common."""

    async def broadcast(
        self, tensor: torch.Tensor, src: int, *, stream: bool = False, timeout: float | None = None
    ) -> None:
        """``tensor`` of rank ``src`` to every rank's ``tensor``."""
        await self._run(timeout, collectives.broadcast, tensor, src, stream)

    async def all_reduce(
        self,
        tensor: torch.Tensor,
        op: ReduceOp | ReduceOp.RedOpType = ReduceOp.SUM,
        *,
        stream: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Reduce ``tensor`` over all ranks with ``op``; the result is in every rank's ``tensor``."""
        await self._run(timeout, collectives.all_reduce, tensor, op, stream)

    async def reduce(
        self,
        tensor: torch.Tensor,
        dst: int,
        op: ReduceOp | ReduceOp.RedOpType = ReduceOp.SUM,
        *,
        stream: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Reduce ``tensor`` over all ranks with ``op``; the result is in ``tensor`` of rank ``dst``."""
        await self._run(timeout, collectives.reduce, tensor, dst, op, stream)

    async def all_gather(
        self, tensors: Tensors, tensor: torch.Tensor, *, stream: bool = False, timeout: float | None = None
    ) -> None:
        """Every rank's ``tensor`` into ``tensors``, a list of ``size`` tensors of the same length."""
        await self._run(timeout, collectives.all_gather, tensors, tensor, stream)

    async def all_gather_into_tensor(
        self, output: torch.Tensor, tensor: torch.Tensor, *, stream: bool = False, timeout: float | None = None
    ) -> None:
        """Every rank's ``tensor``, one after the other, into ``output`` of ``size`` times its length."""
        await self._run(timeout, collectives.all_gather_into_tensor, output, tensor, stream)

    async def gather(
        self,
        tensor: torch.Tensor,
        gather_list: Tensors | None = None,
        dst: int = 0,
        *,
        stream: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Every rank's ``tensor`` into ``gather_list`` of rank ``dst``; None on the others."""
        await self._run(timeout, collectives.gather, tensor, gather_list, dst, stream)

    async def scatter(
        self,
        tensor: torch.Tensor,
        scatter_list: Tensors | None = None,
        src: int = 0,
        *,
        stream: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Each tensor of rank ``src``'s ``scatter_list`` into the ``tensor`` of its rank; None on the others."""
        await self._run(timeout, collectives.scatter, tensor, scatter_list, src, stream)

    async def reduce_scatter(
        self,
        output: torch.Tensor,
        input_list: Tensors,
        op: ReduceOp | ReduceOp.RedOpType = ReduceOp.SUM,
        *,
        stream: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Reduce each of the ``size`` tensors of ``input_list`` over all ranks; ours is in ``output``."""
        await self._run(timeout, exchanges.reduce_scatter, output, input_list, op, stream)

    async def reduce_scatter_tensor(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        op: ReduceOp | ReduceOp.RedOpType = ReduceOp.SUM,
        *,
        stream: bool = False,
        timeout: float | None = None,
    ) -> None:
        """As ``reduce_scatter``, the inputs one after the other in ``tensor``."""
        await self._run(timeout, exchanges.reduce_scatter_tensor, output, tensor, op, stream)

    async def all_to_all(
        self, output_list: Tensors, input_list: Tensors, *, stream: bool = False, timeout: float | None = None
    ) -> None:
        """``input_list[r]`` to rank r, whose ``output_list`` gets it at our place; lengths may differ by pair."""
        await self._run(timeout, exchanges.all_to_all, output_list, input_list, stream)

    async def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        *,
        stream: bool = False,
        timeout: float | None = None,
    ) -> None:
        """As ``all_to_all`` with one tensor each way, split along the first dimension; None splits evenly."""
        splits = output_split_sizes, input_split_sizes
        await self._run(timeout, exchanges.all_to_all_single, output, tensor, *splits, stream)

    async def barrier(self, *, timeout: float | None = None) -> None:
        """Return when every rank has called it."""
        await self._run(timeout, collectives.barrier)

    async def monitored_barrier(self, *, timeout: float | None = None) -> None:
        """``barrier`` whose ``OpTimeout`` says which ranks did not come; so does that of ``barrier`` here."""
        await self._run(timeout, collectives.barrier, "monitored_barrier")

    async def broadcast_object(
        self, obj: Any = None, src: int = 0, *, allow: Sequence[type | str] = (), timeout: float | None = None
    ) -> Any:
        """Rank ``src``'s ``obj``, on every rank. ``allow`` as in ``recv_object``."""
        return await self._run(timeout, objects.broadcast_object, obj, src, allow)

    async def all_gather_object(
        self, obj: Any, *, allow: Sequence[type | str] = (), timeout: float | None = None
    ) -> list[Any]:
        """Every rank's ``obj``, by rank, on every rank."""
        gathered: list[Any] = await self._run(timeout, objects.all_gather_object, obj, allow)
        return gathered

    async def gather_object(
        self, obj: Any, dst: int = 0, *, allow: Sequence[type | str] = (), timeout: float | None = None
    ) -> list[Any] | None:
        """Every rank's ``obj``, by rank, on rank ``dst``; None on the others."""
        gathered: list[Any] | None = await self._run(timeout, objects.gather_object, obj, dst, allow)
        return gathered

    async def scatter_object(
        self,
        objs: Sequence[Any] | None = None,
        src: int = 0,
        *,
        allow: Sequence[type | str] = (),
        timeout: float | None = None,
    ) -> Any:
        """``objs[r]`` of rank ``src``, on rank r."""
        return await self._run(timeout, objects.scatter_object, objs, src, allow)
