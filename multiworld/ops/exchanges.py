"""Starters of collectives in which every pair of ranks has something of its own to exchange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from multiworld.matching.memory import bytes_of
from multiworld.matching.plan import Collective, Fingerprint, Parts, Plan
from multiworld.net.frames import CODES
from multiworld.ops.checks import check_list, check_number, check_source, check_tensor, invalid
from multiworld.ops.collectives import Check, Tensors, as_list, part, pieces, small, start, tensors_of
from multiworld.ops.reduction import Reduction
from multiworld.ops.staging_buffers import StagingBuffers

if TYPE_CHECKING:
    from multiworld.matching.driver import Driver
    from multiworld.matching.engine import Engine
    from multiworld.matching.operation import Operation
    from multiworld.ops.base import GroupBase


def reduce_scatter(engine: Engine, group: GroupBase, output: torch.Tensor, input_list: Tensors, op: Any) -> Operation:
    check_tensor(group, "reduce_scatter", output)
    inputs = as_list(group, "reduce_scatter", "input_list", input_list, output, check_source)
    return _reduce_scatter(engine, group, "reduce_scatter", output, inputs, op)


def reduce_scatter_tensor(
    engine: Engine, group: GroupBase, output: torch.Tensor, tensor: torch.Tensor, op: Any
) -> Operation:
    name = "reduce_scatter_tensor"
    check_tensor(group, name, output)
    inputs = pieces(group, name, "tensor", tensor, output, check_source)
    return _reduce_scatter(engine, group, name, output, inputs, op)


def _reduce_scatter(
    engine: Engine,
    group: GroupBase,
    name: str,
    output: torch.Tensor,
    inputs: Tensors,
    op: Any,
) -> Operation:
    reduction = Reduction(group, name, op, output.dtype, here=engine.membership.backend != "nccl")
    buffers, me, size = StagingBuffers(engine.membership), group.rank, group.size
    target, flats = buffers.target(output), [buffers.source(one) for one in inputs]
    inline = small(engine, group, target.nbytes)

    def reduced(parts: list[torch.Tensor]) -> None:
        if target.numel():
            reduction.apply(target, parts)

    if inline:
        plan = Plan(
            name, _sign(Collective.REDUCE_SCATTER, target, reduction.code, True),
            lambda place: bytes_of(flats[place]), lambda parts: reduced(tensors_of(parts, flats[me])),
            finish=buffers.finish, buffers=buffers,
        )  # fmt: skip
        return start(engine, group, plan)
    sent = buffers.keep(torch.cat(flats))
    got = buffers.keep(torch.empty_like(sent))
    splits = [target.nbytes] * size
    plan = Plan(
        name, _sign(Collective.REDUCE_SCATTER, target, reduction.code, False), lambda _: None, lambda _: None,
        lambda driver: driver.all_to_all(buffers.raw(got), buffers.raw(sent), splits, splits),
        lambda: reduced(list(got.chunk(size))), buffers.finish, buffers,
    )  # fmt: skip
    return start(engine, group, plan)


def _sign(kind: Collective, tensor: torch.Tensor, reduction: int, inline: bool) -> Fingerprint:
    return Fingerprint(kind, tensor.nbytes, CODES[tensor.dtype], -1, reduction, inline)


def all_to_all(engine: Engine, group: GroupBase, output_list: Tensors, input_list: Tensors) -> Operation:
    """Start ``Group.all_to_all``; lengths may differ by pair, and both sides of a pair are compared."""
    name = "all_to_all"
    _check_row(group, name, "input_list", input_list, check_source)
    _check_row(group, name, "output_list", output_list, check_tensor, input_list[0].dtype)
    buffers = StagingBuffers(engine.membership)
    sources, targets = [buffers.source(one) for one in input_list], [buffers.target(one) for one in output_list]
    sent = buffers.keep(torch.cat(sources))
    got = buffers.keep(torch.empty(sum(t.numel() for t in targets), dtype=sent.dtype, device=sent.device))

    def hand_out() -> None:
        for target, piece in zip(targets, got.split([t.numel() for t in targets]), strict=True):
            target.copy_(piece)

    splits = [s.nbytes for s in sources], [t.nbytes for t in targets]
    return _uneven(engine, group, name, buffers, got, sent, splits, hand_out)


def all_to_all_single(
    engine: Engine,
    group: GroupBase,
    output: torch.Tensor,
    tensor: torch.Tensor,
    output_split_sizes: Sequence[int] | None,
    input_split_sizes: Sequence[int] | None,
) -> Operation:
    name = "all_to_all_single"
    check_tensor(group, name, output)
    check_source(group, name, tensor)
    if output.dtype != tensor.dtype:
        raise invalid(group, name, f"output is {output.dtype}, tensor {tensor.dtype}", "make them alike")
    to = _splits(group, name, "input_split_sizes", tensor, input_split_sizes)
    of = _splits(group, name, "output_split_sizes", output, output_split_sizes)
    buffers = StagingBuffers(engine.membership)
    sent, got = buffers.source(tensor), buffers.target(output)
    even = output_split_sizes is None and input_split_sizes is None
    if even and to == of and small(engine, group, to[0]):
        return _even_small(engine, group, name, buffers, got, sent, to[0])
    return _uneven(engine, group, name, buffers, got, sent, (to, of), lambda: None)


def _even_small(
    engine: Engine,
    group: GroupBase,
    name: str,
    buffers: StagingBuffers,
    got: torch.Tensor,
    sent: torch.Tensor,
    step: int,
) -> Operation:
    def piece(of: torch.Tensor, place: int) -> memoryview:
        return bytes_of(of)[place * step : (place + 1) * step]

    def absorb(parts: Parts) -> None:
        for place in range(group.size):
            piece(got, place)[:] = piece(sent, place) if place == group.rank else part(parts, place)

    fingerprint = Fingerprint(Collective.ALL_TO_ALL, step, CODES[sent.dtype])
    return start(
        engine,
        group,
        Plan(name, fingerprint, lambda place: piece(sent, place), absorb, finish=buffers.finish, buffers=buffers),
    )


def _uneven(
    engine: Engine,
    group: GroupBase,
    name: str,
    buffers: StagingBuffers,
    got: torch.Tensor,
    sent: torch.Tensor,
    splits: tuple[list[int], list[int]],
    after: Any,
) -> Operation:
    fingerprint = Fingerprint(Collective.ALL_TO_ALL, 0, CODES[sent.dtype], inline=False, splits=splits)
    if group.size == 1:
        got.copy_(sent)

    def launch(driver: Driver) -> Any:
        return driver.all_to_all(buffers.raw(got), buffers.raw(sent), splits[1], splits[0])

    plan = Plan(
        name, fingerprint, lambda _: None, lambda _: after(), None if group.size == 1 else launch,
        after, buffers.finish, buffers,
    )  # fmt: skip
    return start(engine, group, plan)


def _check_row(
    group: GroupBase, name: str, what: str, tensors: Tensors, check: Check, dtype: torch.dtype | None = None
) -> None:
    """Check a list of one tensor per rank, all of one dtype: ``dtype``, or that of the first."""
    check_list(group, name, what, tensors, group.size)
    for place, tensor in enumerate(tensors):
        check(group, name, tensor)
        dtype = dtype or tensor.dtype
        if tensor.dtype != dtype:
            raise invalid(group, name, f"{what}[{place}] is {tensor.dtype}, the first input {dtype}", "make them alike")


def _splits(group: GroupBase, name: str, what: str, tensor: torch.Tensor, given: Sequence[int] | None) -> list[int]:
    """Bytes per rank, from sizes along the first dimension."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if given is None:
        if rows % group.size:
            raise invalid(group, name, f"{rows} rows cannot be split evenly among {group.size}", f"pass {what}")
        sizes = [rows // group.size] * group.size
    else:
        check_list(group, name, what, given, group.size)
        sizes = [check_number(group, name, f"{what}[{place}]", size) for place, size in enumerate(given)]
    if sum(sizes) != rows or min(sizes) < 0:
        raise invalid(group, name, f"{what} is {sizes} for {rows} rows and {group.size} members", "make it add up")
    per_row = tensor.nbytes // rows if rows else 0
    return [size * per_row for size in sizes]
