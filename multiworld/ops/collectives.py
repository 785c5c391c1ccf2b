"""Starters of collectives: arguments checked, a plan made, fingerprint sent.

Each plan has two ways: small payloads travel with the fingerprints (``outgoing``, ``absorb``), larger ones through the
backend (``launch``, ``after``). Data that is only moved is handled as bytes, so every dtype can be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from multiworld.matching.memory import bytes_of
from multiworld.matching.plan import INLINE_BYTES, Bytes, Collective, Fingerprint, Parts, Plan
from multiworld.net.frames import CODES
from multiworld.ops.checks import check_list, check_rank, check_source, check_tensor, invalid
from multiworld.ops.reduction import Reduction
from multiworld.ops.staging import readable
from multiworld.ops.staging_buffers import StagingBuffers

if TYPE_CHECKING:
    from multiworld.matching.driver import Driver
    from multiworld.matching.engine import Engine
    from multiworld.matching.operation import Operation
    from multiworld.ops.base import GroupBase

Tensors = Sequence[torch.Tensor]
#: ``check_tensor`` for what is written, ``check_source`` for what is only read
Check = Callable[["GroupBase", str, torch.Tensor], int]


def start(engine: Engine, group: GroupBase, plan: Plan) -> Operation:
    """Begin the collective that ``plan`` says."""
    return engine.collective(group.gid, group.digest, group.ranks, plan)


def _nothing(_: int) -> None:
    return None


def small(engine: Engine, group: GroupBase, nbytes: int) -> bool:
    """Whether pieces of that length, one to each other member, travel with the fingerprints."""
    return nbytes * (group.size - 1) <= INLINE_BYTES and engine.membership.backend != "nccl"


def as_list(
    group: GroupBase, operation: str, what: str, tensors: Tensors | None, like: torch.Tensor, check: Check
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


def _only_at(group: GroupBase, operation: str, what: str, root: int, tensors: Tensors | None) -> None:
    if group.rank == root or tensors is None:
        return
    check_list(group, operation, what, tensors)
    if tensors:
        raise invalid(group, operation, f"{what} given at rank {group.rank}", f"pass it at rank {root} only")


def barrier(engine: Engine, group: GroupBase, name: str = "barrier") -> Operation:
    """Start ``Group.barrier``: the fingerprints are all there is to it."""
    return start(engine, group, Plan(name, Fingerprint(Collective.BARRIER), _nothing, lambda _: None))


def broadcast(engine: Engine, group: GroupBase, tensor: torch.Tensor, src: int) -> Operation:
    src = check_rank(group, "broadcast", "src", src)
    buffers, ours = StagingBuffers(engine.membership), group.rank == src
    code = (check_source if ours else check_tensor)(group, "broadcast", tensor)
    flat = buffers.both(tensor) if not ours else buffers.source(tensor)
    inline = small(engine, group, flat.nbytes)

    def absorb(parts: Parts) -> None:
        if not ours:
            bytes_of(flat)[:] = part(parts, src)

    plan = Plan(
        "broadcast", Fingerprint(Collective.BROADCAST, flat.nbytes, code, src, inline=inline),
        lambda _: bytes_of(flat) if ours and inline else None, absorb,
        None if inline else lambda driver: driver.broadcast(buffers.raw(flat), src),
        finish=buffers.finish, buffers=buffers,
    )  # fmt: skip
    return start(engine, group, plan)


def all_reduce(engine: Engine, group: GroupBase, tensor: torch.Tensor, op: Any) -> Operation:
    return _reduce_to(engine, group, "all_reduce", Collective.ALL_REDUCE, tensor, op, None)


def reduce(engine: Engine, group: GroupBase, tensor: torch.Tensor, dst: int, op: Any) -> Operation:
    dst = check_rank(group, "reduce", "dst", dst)
    return _reduce_to(engine, group, "reduce", Collective.REDUCE, tensor, op, dst)


def _reduce_to(
    engine: Engine,
    group: GroupBase,
    name: str,
    kind: Collective,
    tensor: torch.Tensor,
    op: Any,
    dst: int | None,
) -> Operation:
    buffers, ours = StagingBuffers(engine.membership), dst is None or group.rank == dst
    code = check_tensor(group, name, tensor)  # at every rank: the backend may use the memory for what is between
    reduction = Reduction(group, name, op, tensor.dtype, here=engine.membership.backend != "nccl")
    flat = buffers.both(tensor)
    inline = small(engine, group, flat.nbytes)

    def outgoing(place: int) -> Bytes | None:
        return bytes_of(flat) if inline and dst in (None, place) else None

    def absorb(parts: Parts) -> None:
        if ours and flat.numel():
            reduction.apply(flat, tensors_of(parts, flat))

    def launch(driver: Driver) -> Any:
        if dst is None:
            return driver.all_reduce(flat, reduction.backend_op)
        return driver.reduce(flat, dst, reduction.backend_op)

    plan = Plan(
        name, Fingerprint(kind, flat.nbytes, code, -1 if dst is None else dst, reduction.code, inline),
        outgoing, absorb, None if inline else launch,
        (lambda: reduction.complete(flat, group.size)) if ours else None, buffers.finish, buffers,
    )  # fmt: skip
    return start(engine, group, plan)


def all_gather(engine: Engine, group: GroupBase, tensors: Tensors, tensor: torch.Tensor) -> Operation:
    name = "all_gather"
    check_source(group, name, tensor)
    return _all_gather(engine, group, name, as_list(group, name, "tensors", tensors, tensor, check_tensor), tensor)


def all_gather_into_tensor(engine: Engine, group: GroupBase, output: torch.Tensor, tensor: torch.Tensor) -> Operation:
    name = "all_gather_into_tensor"
    check_source(group, name, tensor)
    return _all_gather(engine, group, name, pieces(group, name, "output", output, tensor, check_tensor), tensor)


def _all_gather(engine: Engine, group: GroupBase, name: str, outputs: Tensors, tensor: torch.Tensor) -> Operation:
    buffers, me = StagingBuffers(engine.membership), group.rank
    flat, flats = buffers.source(tensor), [buffers.target(output) for output in outputs]
    inline = small(engine, group, flat.nbytes)

    def absorb(parts: Parts) -> None:
        for place, target in enumerate(flats):
            bytes_of(target)[:] = bytes_of(flat) if place == me else part(parts, place)

    plan = Plan(
        name, Fingerprint(Collective.ALL_GATHER, flat.nbytes, CODES[tensor.dtype], inline=inline),
        lambda _: bytes_of(flat) if inline else None, absorb,
        None if inline else lambda driver: driver.all_gather(buffers.raws(flats), buffers.raw(flat)),
        finish=buffers.finish, buffers=buffers,
    )  # fmt: skip
    return start(engine, group, plan)


def gather(engine: Engine, group: GroupBase, tensor: torch.Tensor, gather_list: Tensors | None, dst: int) -> Operation:
    code = check_source(group, "gather", tensor)
    dst = check_rank(group, "gather", "dst", dst)
    _only_at(group, "gather", "gather_list", dst, gather_list)
    buffers, me = StagingBuffers(engine.membership), group.rank
    outputs = as_list(group, "gather", "gather_list", gather_list, tensor, check_tensor) if me == dst else ()
    flat, flats = buffers.source(tensor), [buffers.target(output) for output in outputs]
    inline = small(engine, group, flat.nbytes)

    def absorb(parts: Parts) -> None:
        for place, target in enumerate(flats):
            bytes_of(target)[:] = bytes_of(flat) if place == me else part(parts, place)

    plan = Plan(
        "gather", Fingerprint(Collective.GATHER, flat.nbytes, code, dst, inline=inline),
        lambda place: bytes_of(flat) if inline and place == dst else None, absorb,
        None if inline else lambda driver: driver.gather(buffers.raws(flats), buffers.raw(flat), dst),
        finish=buffers.finish, buffers=buffers,
    )  # fmt: skip
    return start(engine, group, plan)


def scatter(
    engine: Engine, group: GroupBase, tensor: torch.Tensor, scatter_list: Tensors | None, src: int
) -> Operation:
    code = check_tensor(group, "scatter", tensor)
    src = check_rank(group, "scatter", "src", src)
    _only_at(group, "scatter", "scatter_list", src, scatter_list)
    buffers, me = StagingBuffers(engine.membership), group.rank
    inputs = as_list(group, "scatter", "scatter_list", scatter_list, tensor, check_source) if me == src else ()
    flat, flats = buffers.target(tensor), [buffers.source(one) for one in inputs]
    inline = small(engine, group, flat.nbytes)

    def absorb(parts: Parts) -> None:
        bytes_of(flat)[:] = bytes_of(flats[me]) if me == src else part(parts, src)

    plan = Plan(
        "scatter", Fingerprint(Collective.SCATTER, flat.nbytes, code, src, inline=inline),
        lambda place: bytes_of(flats[place]) if inline and me == src else None, absorb,
        None if inline else lambda driver: driver.scatter(buffers.raw(flat), buffers.raws(flats), src),
        finish=buffers.finish, buffers=buffers,
    )  # fmt: skip
    return start(engine, group, plan)


def pieces(
    group: GroupBase, operation: str, what: str, whole: torch.Tensor, piece: torch.Tensor, check: Check
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
    """What rank ``place`` sent with its fingerprint."""
    found = parts[place]
    if found is None:
        raise LookupError(f"no payload of rank {place}")
    return found


def tensors_of(parts: Parts, own: torch.Tensor) -> list[torch.Tensor]:
    """What every rank contributed, by rank."""
    return [own if part is None else torch.frombuffer(part, dtype=own.dtype) for part in parts]
