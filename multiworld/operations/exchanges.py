"""Collectives in which every pair of ranks has something of its own to exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from multiworld.matching.collective_plan import Collective, Fingerprint, Parts, Plan
from multiworld.matching.memory import bytes_of
from multiworld.matching.protocol import CODES
from multiworld.operations import parts as moved
from multiworld.operations.collectives import (
    Check,
    Tensors,
    as_list,
    begin,
    buffers_for,
    nothing,
    part,
    pieces,
    raw,
    small,
    tensors_of,
)
from multiworld.operations.parts import Memory, exchange
from multiworld.operations.reduction import Reduction
from multiworld.tensors.checks import check_list, check_number, check_source, check_tensor, invalid

if TYPE_CHECKING:
    from multiworld.engine.engine import Engine
    from multiworld.matching.driver import Driver
    from multiworld.matching.membership import GroupMembers
    from multiworld.matching.operation import Operation
    from multiworld.tensors.staging_buffers import StagingBuffers


def reduce_scatter(
    engine: Engine, group: GroupMembers, output: torch.Tensor, input_list: Tensors, op: Any, stream: bool = False
) -> Operation:
    check_tensor(group, "reduce_scatter", output)
    inputs = as_list(group, "reduce_scatter", "input_list", input_list, output, check_source)
    return _reduce_scatter(engine, group, "reduce_scatter", output, inputs, op, stream)


def reduce_scatter_tensor(
    engine: Engine, group: GroupMembers, output: torch.Tensor, tensor: torch.Tensor, op: Any, stream: bool = False
) -> Operation:
    name = "reduce_scatter_tensor"
    check_tensor(group, name, output)
    inputs = pieces(group, name, "tensor", tensor, output, check_source)
    return _reduce_scatter(engine, group, name, output, inputs, op, stream, tensor)


def _reduce_scatter(
    engine: Engine,
    group: GroupMembers,
    name: str,
    output: torch.Tensor,
    inputs: Tensors,
    op: Any,
    stream: bool,
    whole: torch.Tensor | None = None,
) -> Operation:
    """``whole`` is what the inputs are pieces of, if they are."""
    buffers, me = buffers_for(engine, group, name, output, *inputs), group.rank
    on_device = buffers.on_device
    reduction = Reduction(group, name, op, output.dtype, on_device=on_device)
    target = buffers.target(output)
    flats = [] if on_device and whole is not None else [buffers.source(one) for one in inputs]
    inline = small(group, target.nbytes, buffers)
    kind, code = Collective.REDUCE_SCATTER, CODES[target.dtype]
    signature = Fingerprint(
        kind, target.nbytes, code, reduction=reduction.code, inline=inline, on_device=buffers.on_device
    )

    def absorb(parts: Parts) -> None:
        reduction.apply(target, tensors_of(parts, flats[me]))

    def launch(driver: Driver) -> Any:
        return driver.reduce_scatter(target, sent, reduction.backend_op, after=buffers.after)

    plan = Plan(name, signature, lambda place: bytes_of(flats[place]), absorb, launch)
    if not on_device:
        if not inline:
            reducer = moved.Reducer(group, reduction, target, target.numel())
            plan.steps = partial(moved.reduce_scatter, group, reducer, flats, target)
        return begin(engine, group, plan, buffers, stream)
    sent = buffers.joined(flats) if whole is None else buffers.source(whole)
    return begin(engine, group, plan, buffers, stream, [(target, sent)])


def all_to_all(
    engine: Engine, group: GroupMembers, output_list: Tensors, input_list: Tensors, stream: bool = False
) -> Operation:
    """Start ``Group.all_to_all``; lengths may differ by pair, and both sides of a pair are compared."""
    name = "all_to_all"
    _check_row(group, name, "input_list", input_list, check_source)
    _check_row(group, name, "output_list", output_list, check_tensor, input_list[0].dtype)
    buffers = buffers_for(engine, group, name, *input_list, *output_list)
    sources, targets = [buffers.source(one) for one in input_list], [buffers.target(one) for one in output_list]
    splits = [s.nbytes for s in sources], [t.nbytes for t in targets]
    if not buffers.on_device:
        return _on_cpu(engine, group, name, buffers, sources.__getitem__, targets.__getitem__, splits)
    sent = buffers.joined(sources)
    got = buffers.keep(torch.empty(sum(t.numel() for t in targets), dtype=sent.dtype, device=sent.device))

    def hand_out() -> None:
        for target, piece in zip(targets, got.split([t.numel() for t in targets]), strict=True):
            target.copy_(piece)

    return _on_device(engine, group, name, buffers, got, sent, splits, hand_out, stream)


def all_to_all_single(
    engine: Engine,
    group: GroupMembers,
    output: torch.Tensor,
    tensor: torch.Tensor,
    output_split_sizes: Sequence[int] | None,
    input_split_sizes: Sequence[int] | None,
    stream: bool = False,
) -> Operation:
    name = "all_to_all_single"
    check_tensor(group, name, output)
    check_source(group, name, tensor)
    if output.dtype != tensor.dtype:
        raise invalid(group, name, f"output is {output.dtype}, tensor {tensor.dtype}", "make them alike")
    to = _splits(group, name, "input_split_sizes", tensor, input_split_sizes)
    of = _splits(group, name, "output_split_sizes", output, output_split_sizes)
    buffers = buffers_for(engine, group, name, output, tensor)
    sent, got = buffers.source(tensor), buffers.target(output)
    if buffers.on_device:
        return _on_device(engine, group, name, buffers, got, sent, (to, of), lambda: None, stream)
    even = output_split_sizes is None and input_split_sizes is None and to == of
    pieces = partial(_piece, sent, to), partial(_piece, got, of)
    return _on_cpu(engine, group, name, buffers, *pieces, (to, of), even=even)


def _piece(flat: torch.Tensor, sizes: list[int], place: int) -> torch.Tensor:
    """The piece at ``place`` of a tensor that is split in so many bytes; made when it is used, since the memory may be
    another by then."""
    begin = sum(sizes[:place]) // flat.element_size()
    return flat[begin : begin + sizes[place] // flat.element_size()]


def _on_cpu(
    engine: Engine,
    group: GroupMembers,
    name: str,
    buffers: StagingBuffers,
    outgoing: Memory,
    incoming: Memory,
    splits: tuple[list[int], list[int]],
    *,
    even: bool = False,
) -> Operation:
    """Exchange over the lanes. If all know that all pieces are alike, ``even``, small ones go with the fingerprints."""
    me, code = group.rank, CODES[incoming(group.rank).dtype]
    if even and small(group, splits[0][0], buffers):
        signature = Fingerprint(Collective.ALL_TO_ALL, splits[0][0], code)
    else:
        signature = Fingerprint(Collective.ALL_TO_ALL, 0, code, inline=False, splits=splits)

    def absorb(parts: Parts) -> None:
        for place in range(group.size):
            bytes_of(incoming(place))[:] = bytes_of(outgoing(me)) if place == me else part(parts, place)

    plan = Plan(name, signature, lambda place: bytes_of(outgoing(place)), absorb)
    plan.steps = lambda: iter([exchange(group, outgoing, incoming)])
    return begin(engine, group, plan, buffers, False, [(incoming(me), outgoing(me))])


def _on_device(
    engine: Engine,
    group: GroupMembers,
    name: str,
    buffers: StagingBuffers,
    got: torch.Tensor,
    sent: torch.Tensor,
    splits: tuple[list[int], list[int]],
    after: Callable[[], None],
    stream: bool,
) -> Operation:
    signature = Fingerprint(
        Collective.ALL_TO_ALL, 0, CODES[sent.dtype], inline=False, splits=splits, on_device=buffers.on_device
    )

    def launch(driver: Driver) -> Any:
        return driver.all_to_all(raw(got), raw(sent), splits[1], splits[0], after=buffers.after)

    def finish(value: Any) -> Any:
        after()
        return buffers.finish(value)

    plan = Plan(name, signature, nothing, nothing, launch, finish=finish)
    return begin(engine, group, plan, buffers, stream, [(got, sent)])


def _check_row(
    group: GroupMembers, name: str, what: str, tensors: Tensors, check: Check, dtype: torch.dtype | None = None
) -> None:
    """Check a list of one tensor per rank, all of one dtype: ``dtype``, or that of the first."""
    check_list(group, name, what, tensors, group.size)
    for place, tensor in enumerate(tensors):
        check(group, name, tensor)
        dtype = dtype or tensor.dtype
        if tensor.dtype != dtype:
            raise invalid(group, name, f"{what}[{place}] is {tensor.dtype}, the first input {dtype}", "make them alike")


def _splits(group: GroupMembers, name: str, what: str, tensor: torch.Tensor, given: Sequence[int] | None) -> list[int]:
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
