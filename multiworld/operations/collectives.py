"""Collectives: each function checks its arguments, makes a plan and starts it.

Each plan has three ways: small payloads travel with the fingerprints (``outgoing``, ``absorb``), larger ones in parts
over the lanes (``steps``, see ``operations.parts``). Tensors on the device of the backend go through that (``launch``),
and what is left to do is done in the caller's stream (``finish``). Data that is only moved is handled as bytes, so
every dtype can be.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from multiworld.matching.collective_plan import INLINE_BYTES, Bytes, Collective, Fingerprint, Parts, Plan, Steps
from multiworld.matching.memory import bytes_of
from multiworld.operations import parts as moved
from multiworld.operations.reduction import Reduction
from multiworld.tensors.checks import check_list, check_rank, check_source, check_tensor, invalid
from multiworld.tensors.on_device import device_for
from multiworld.tensors.staging import readable
from multiworld.tensors.staging_buffers import StagingBuffers

if TYPE_CHECKING:
    from multiworld.engine.engine import Engine
    from multiworld.matching.driver import Driver
    from multiworld.matching.membership import GroupMembers
    from multiworld.matching.operation import Operation

Tensors = Sequence[torch.Tensor]
#: ``check_tensor`` for what is written, ``check_source`` for what is only read
Check = Callable[["GroupMembers", str, torch.Tensor], int]


def begin(
    engine: Engine,
    group: GroupMembers,
    plan: Plan,
    buffers: StagingBuffers,
    stream: bool,
    local: Sequence[tuple[torch.Tensor, torch.Tensor]] = (),
) -> Operation:
    """Start a plan of tensors, which may be on the device; it goes one of its ways, as its fingerprint says.

    Args:
        local: targets, and what of the caller's own is copied to them where neither ``absorb`` does that, nor a backend
            with other members.
    """
    if plan.fingerprint.inline:
        plan.launch = plan.steps = None
    elif plan.fingerprint.on_device:
        plan.steps, plan.outgoing, plan.absorb = None, nothing, nothing
    else:
        plan.launch, plan.outgoing, plan.absorb = None, nothing, nothing
        plan.finish = partial(_finish_in_parts, buffers, local)
    plan.buffers, plan.streamed = buffers, stream and plan.fingerprint.on_device
    plan.finish = buffers.finish if plan.finish is None else plan.finish
    if plan.fingerprint.on_device:
        if group.size == 1:
            _do_alone(plan, local)
        elif not plan.fingerprint.nbytes and plan.fingerprint.splits is None:  # of all, so that no member launches it
            plan.launch = None
        buffers.begin()
    return engine.collective(group, plan)


def _do_alone(plan: Plan, local: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Do without a backend: copy in the stream of the caller, who is the only member."""
    finish = plan.finish
    plan.launch = None

    def copy(value: Any) -> Any:
        for to, of in local:
            to.copy_(of)
        return value if finish is None else finish(value)

    plan.finish = copy


def _finish_in_parts(buffers: StagingBuffers, local: Sequence[tuple[torch.Tensor, torch.Tensor]], value: Any) -> Any:
    """Copy what the caller does not send to itself, in this thread alone and without the interpreter's lock."""
    for to, of in local:
        ctypes.memmove(to.data_ptr(), of.data_ptr(), of.nbytes)
    return buffers.finish(value)


def nothing(_: Any) -> None:
    return None


def raw(flat: torch.Tensor) -> torch.Tensor:
    """``flat`` as bytes, so that the backend moves any dtype."""
    return flat.view(torch.uint8)


def buffers_for(engine: Engine, group: GroupMembers, operation: str, *tensors: torch.Tensor) -> StagingBuffers:
    """Make the place for the checked tensors of a collective: all on the device, or all on the CPU.

    Raises:
        InvalidArgument: some are on the device and some are not, or the current stream is being captured.
    """
    if engine.device is None:
        return StagingBuffers()
    device = device_for(engine, group, operation, tensors[0])
    if any(one.device != tensors[0].device for one in tensors):
        places = sorted({str(one.device) for one in tensors})
        raise invalid(
            group, operation, f"the tensors are on different devices: {', '.join(places)}", "pass all on one device"
        )
    return StagingBuffers(device)


def small(group: GroupMembers, nbytes: int, buffers: StagingBuffers) -> bool:
    """Tell whether pieces of that length, one to each other member, travel with the fingerprints."""
    return buffers.device is None and nbytes * (len(group.ranks) - 1) <= INLINE_BYTES


def as_list(
    group: GroupMembers, operation: str, what: str, tensors: Tensors | None, like: torch.Tensor, check: Check
) -> Tensors:
    """Check a list of one tensor per rank, each with ``check``, and each of the length and dtype of ``like``."""
    check_list(group, operation, what, tensors, group.size)
    assert tensors is not None  # noqa: S101 - for the type checker; it is a list
    for place, tensor in enumerate(tensors):
        check(group, operation, tensor)
        if tensor.dtype != like.dtype or tensor.numel() != like.numel():
            raise invalid(
                group,
                operation,
                f"{what}[{place}] has {tensor.numel()} of {tensor.dtype}, the tensor {like.numel()} of {like.dtype}",
                "make them alike",
            )
    return tensors


def _only_at(group: GroupMembers, operation: str, what: str, root: int, tensors: Tensors | None) -> None:
    if group.rank == root or tensors is None:
        return
    check_list(group, operation, what, tensors)
    if tensors:
        raise invalid(group, operation, f"{what} given at rank {group.rank}", f"pass it at rank {root} only")


def barrier(engine: Engine, group: GroupMembers, name: str = "barrier") -> Operation:
    """Start ``Group.barrier``: the fingerprints are all there is to it."""
    return engine.collective(group, Plan(name, Fingerprint(Collective.BARRIER), nothing, nothing))


def broadcast(engine: Engine, group: GroupMembers, tensor: torch.Tensor, src: int, stream: bool = False) -> Operation:
    src = check_rank(group, "broadcast", "src", src)
    ours = group.rank == src
    code = (check_source if ours else check_tensor)(group, "broadcast", tensor)
    buffers = buffers_for(engine, group, "broadcast", tensor)
    flat = buffers.both(tensor) if not ours else buffers.source(tensor)
    inline = small(group, flat.nbytes, buffers)

    def absorb(parts: Parts) -> None:
        if not ours:
            bytes_of(flat)[:] = part(parts, src)

    def launch(driver: Driver) -> Any:
        return driver.broadcast(raw(flat), src, after=buffers.after)

    signature = Fingerprint(Collective.BROADCAST, flat.nbytes, code, src, inline=inline, on_device=buffers.on_device)
    plan = Plan("broadcast", signature, lambda _: bytes_of(flat) if ours else None, absorb, launch)
    plan.steps = lambda: iter([moved.distribute(group, lambda _: flat, flat, src)])
    return begin(engine, group, plan, buffers, stream)


def reduce(
    engine: Engine, group: GroupMembers, tensor: torch.Tensor, dst: int, op: Any, stream: bool = False
) -> Operation:
    return all_reduce(engine, group, tensor, op, stream, check_rank(group, "reduce", "dst", dst))


def all_reduce(
    engine: Engine, group: GroupMembers, tensor: torch.Tensor, op: Any, stream: bool = False, dst: int | None = None
) -> Operation:
    """Start ``Group.all_reduce``; with ``dst``, ``Group.reduce``."""
    name, kind = ("all_reduce", Collective.ALL_REDUCE) if dst is None else ("reduce", Collective.REDUCE)
    code = check_tensor(group, name, tensor)  # at every rank: a backend may use the memory for what is between
    buffers, ours = buffers_for(engine, group, name, tensor), dst is None or group.rank == dst
    reduction = Reduction(group, name, op, tensor.dtype, on_device=buffers.on_device)
    flat = buffers.both(tensor)
    inline = small(group, flat.nbytes, buffers)
    on_lanes = not (inline or buffers.on_device)
    reducer = moved.Reducer(group, reduction, flat, -(-flat.numel() // group.size)) if on_lanes else None

    def outgoing(place: int) -> Bytes | None:
        return bytes_of(flat) if dst in (None, place) else None

    def absorb(parts: Parts) -> None:
        if ours:
            reduction.apply(flat, tensors_of(parts, flat))

    def launch(driver: Driver) -> Any:
        if dst is None:
            return driver.all_reduce(flat, reduction.backend_op, after=buffers.after)
        return driver.reduce(flat, dst, reduction.backend_op, after=buffers.after)

    root = -1 if dst is None else dst
    signature = Fingerprint(kind, flat.nbytes, code, root, reduction.code, inline, buffers.on_device)
    plan = Plan(name, signature, outgoing, absorb, launch)
    if reducer is not None:
        plan.steps = partial(moved.all_reduce, group, reducer, flat, dst)
    return begin(engine, group, plan, buffers, stream)


def all_gather(
    engine: Engine, group: GroupMembers, tensors: Tensors, tensor: torch.Tensor, stream: bool = False
) -> Operation:
    code = check_source(group, "all_gather", tensor)
    outputs = as_list(group, "all_gather", "tensors", tensors, tensor, check_tensor)
    return _gathered(engine, group, "all_gather", outputs, tensor, code, stream)


def all_gather_into_tensor(
    engine: Engine, group: GroupMembers, output: torch.Tensor, tensor: torch.Tensor, stream: bool = False
) -> Operation:
    name = "all_gather_into_tensor"
    code = check_source(group, name, tensor)
    outputs = pieces(group, name, "output", output, tensor, check_tensor)
    return _gathered(engine, group, name, outputs, tensor, code, stream)


def gather(
    engine: Engine,
    group: GroupMembers,
    tensor: torch.Tensor,
    gather_list: Tensors | None,
    dst: int,
    stream: bool = False,
) -> Operation:
    code = check_source(group, "gather", tensor)
    dst = check_rank(group, "gather", "dst", dst)
    _only_at(group, "gather", "gather_list", dst, gather_list)
    ours = group.rank == dst
    outputs = as_list(group, "gather", "gather_list", gather_list, tensor, check_tensor) if ours else ()
    return _gathered(engine, group, "gather", outputs, tensor, code, stream, dst)


def _gathered(
    engine: Engine,
    group: GroupMembers,
    name: str,
    outputs: Tensors,
    tensor: torch.Tensor,
    code: int,
    stream: bool,
    dst: int | None = None,
) -> Operation:
    """Start a gather of checked tensors to ``dst``; to every rank if None."""
    kind, root = (Collective.ALL_GATHER, -1) if dst is None else (Collective.GATHER, dst)
    buffers, me = buffers_for(engine, group, name, tensor, *outputs), group.rank
    flat, flats = buffers.source(tensor), [buffers.target(output) for output in outputs]
    inline = small(group, flat.nbytes, buffers)

    def outgoing(place: int) -> Bytes | None:
        return bytes_of(flat) if dst in (None, place) else None

    def absorb(parts: Parts) -> None:
        for place, target in enumerate(flats):
            bytes_of(target)[:] = bytes_of(flat) if place == me else part(parts, place)

    def launch(driver: Driver) -> Any:
        targets, sent = [*map(raw, flats)], raw(flat)
        if dst is None:
            return driver.all_gather(targets, sent, after=buffers.after)
        return driver.gather(targets, sent, dst, after=buffers.after)

    signature = Fingerprint(kind, flat.nbytes, code, root, inline=inline, on_device=buffers.on_device)

    def steps() -> Steps:
        if dst is None:
            yield moved.exchange(group, lambda _: flat, flats.__getitem__)
        else:
            yield moved.collect(group, flat, flats.__getitem__, dst)

    plan = Plan(name, signature, outgoing, absorb, launch, steps)
    return begin(engine, group, plan, buffers, stream, [(target, flat) for target in flats[me : me + 1]])


def scatter(
    engine: Engine,
    group: GroupMembers,
    tensor: torch.Tensor,
    scatter_list: Tensors | None,
    src: int,
    stream: bool = False,
) -> Operation:
    code = check_tensor(group, "scatter", tensor)
    src = check_rank(group, "scatter", "src", src)
    _only_at(group, "scatter", "scatter_list", src, scatter_list)
    me = group.rank
    inputs = as_list(group, "scatter", "scatter_list", scatter_list, tensor, check_source) if me == src else ()
    buffers = buffers_for(engine, group, "scatter", tensor, *inputs)
    flat, flats = buffers.target(tensor), [buffers.source(one) for one in inputs]
    inline = small(group, flat.nbytes, buffers)

    def absorb(parts: Parts) -> None:
        bytes_of(flat)[:] = bytes_of(flats[me]) if me == src else part(parts, src)

    def launch(driver: Driver) -> Any:
        return driver.scatter(raw(flat), [*map(raw, flats)], src, after=buffers.after)

    signature = Fingerprint(Collective.SCATTER, flat.nbytes, code, src, inline=inline, on_device=buffers.on_device)
    plan = Plan("scatter", signature, lambda place: bytes_of(flats[place]) if me == src else None, absorb, launch)
    plan.steps = lambda: iter([moved.distribute(group, flats.__getitem__, flat, src)])
    return begin(engine, group, plan, buffers, stream, [(flat, one) for one in flats[me : me + 1]])


def pieces(
    group: GroupMembers, operation: str, what: str, whole: torch.Tensor, piece: torch.Tensor, check: Check
) -> Tensors:
    """``whole``, checked with ``check``, as one flat piece per rank, each of the length and dtype of ``piece``."""
    check(group, operation, whole)
    if whole.numel() != piece.numel() * group.size or whole.dtype != piece.dtype:
        raise invalid(
            group,
            operation,
            f"{what} has {whole.numel()} of {whole.dtype}, not {group.size} times {piece.numel()} of {piece.dtype}",
            "make the one as long as all pieces together",
        )
    flat = readable(whole).reshape(-1)  # a copy only of what is lazy, which only a source may be
    return list(flat.chunk(group.size)) if whole.numel() else [flat] * group.size


def part(parts: Parts, place: int) -> memoryview:
    """The payload that rank ``place`` sent with its fingerprint."""
    found = parts[place]
    if found is None:
        raise LookupError(f"no payload of rank {place}")
    return found


def tensors_of(parts: Parts, own: torch.Tensor) -> list[torch.Tensor]:
    """The contribution of every rank, by rank."""
    return [torch.frombuffer(part, dtype=own.dtype) if part else own for part in parts]  # none is laid over no bytes
