"""Starters of point-to-point operations: arguments checked, operation queued with its peer's mailbox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import torch

from multiworld.matching.mailbox import Signature
from multiworld.matching.memory import bytes_of
from multiworld.matching.operation import BatchOperation, Operation
from multiworld.net.frames import Mode, message_key
from multiworld.ops.checks import (
    check_device,
    check_list,
    check_number,
    check_rank,
    check_source,
    check_tensor,
    invalid,
)
from multiworld.ops.pickling import allowed, dumps, loads
from multiworld.ops.shapes import shape_bytes, with_shape
from multiworld.ops.staging import on_cpu, receive_buffer, writable

if TYPE_CHECKING:
    from multiworld.matching.engine import Engine
    from multiworld.ops.base import GroupBase

MAX_TAG = 2**31 - 1


_CHECKS: Final = {"send": check_source, "recv": check_tensor}


@dataclass(frozen=True, slots=True)
class P2P:
    """One entry of ``batch_p2p``.

    Args:
        kind: ``"send"`` or ``"recv"``.
        tensor: as in ``send`` and ``recv``.
        peer: rank in the group.
        tag: as in ``send``.
    """

    kind: Literal["send", "recv"]
    tensor: torch.Tensor
    peer: int
    tag: int = 0


def _peer_and_key(group: GroupBase, operation: str, what: str, rank: int, tag: int) -> tuple[int, int]:
    peer = group.ranks[check_rank(group, operation, what, rank)]
    if peer == group._world.world_rank:
        raise invalid(group, operation, f"{what} is our own rank {rank}", "copy the tensor instead")
    return peer, _key(group, operation, tag)


def _key(group: GroupBase, operation: str, tag: int) -> int:
    number = check_number(group, operation, "tag", tag)
    if not 0 <= number <= MAX_TAG:
        raise invalid(group, operation, f"tag {number} is not in 0..{MAX_TAG}", "choose another tag")
    return message_key(group.gid, number)


def send(engine: Engine, group: GroupBase, tensor: torch.Tensor, dst: int, tag: int) -> Operation:
    code = check_source(group, "send", tensor)
    peer, key = _peer_and_key(group, "send", "dst", dst, tag)
    source = on_cpu(tensor)
    view = bytes_of(source)
    return engine.send("send", peer, key, (Mode.FIXED, code, len(view)), (view,), source)


def recv(engine: Engine, group: GroupBase, tensor: torch.Tensor, src: int | None, tag: int) -> Operation:
    code = check_tensor(group, "recv", tensor)
    target = receive_buffer(tensor)
    view = bytes_of(target)
    signature = (Mode.FIXED, code, len(view))
    operation: Operation
    if src is None:
        operation = _start_any(engine, group, _key(group, "recv", tag), signature, view, target)
    else:
        peer, key = _peer_and_key(group, "recv", "src", src, tag)
        operation = engine.receive("recv", peer, key, signature, view, target)
    if group.size != engine.membership.size or target is not tensor:
        operation.finish = lambda source: _received(group, tensor, target, source)
    return operation


def _received(group: GroupBase, tensor: torch.Tensor, target: torch.Tensor, source: int) -> int:
    if target is not tensor:
        writable(tensor).copy_(target)
    return group.ranks.index(source)


def _start_any(
    engine: Engine, group: GroupBase, key: int, signature: Signature, view: memoryview, keep: Any
) -> Operation:
    peers = tuple(rank for rank in group.ranks if rank != engine.membership.rank)
    if not peers:
        raise invalid(group, "recv", "there is nobody else in the group", "receive in a group of two or more")
    return engine.receive_any(peers, key, signature, view, keep)


def send_tensor(engine: Engine, group: GroupBase, tensor: torch.Tensor, dst: int, tag: int) -> Operation:
    """Start ``Group.send_tensor``: the payload, then the shape, so that the payload lies aligned on the other side."""
    code = check_source(group, "send_tensor", tensor)
    peer, key = _peer_and_key(group, "send_tensor", "dst", dst, tag)
    source = on_cpu(tensor)
    view = bytes_of(source)
    shape = shape_bytes(source)
    signature = (Mode.TENSOR, code, len(view) + len(shape))
    return engine.send("send_tensor", peer, key, signature, (view, shape), source)


def recv_tensor(engine: Engine, group: GroupBase, src: int, tag: int, device: torch.device | str | None) -> Operation:
    place = check_device(group, "recv_tensor", device)
    peer, key = _peer_and_key(group, "recv_tensor", "src", src, tag)
    signature = (Mode.TENSOR, 0, engine.membership.limits.max_message_bytes)
    operation = engine.receive("recv_tensor", peer, key, signature, None, None)
    us = engine.membership
    operation.finish = lambda _: with_shape(us, peer, operation.dtype, operation.buffer).to(place)
    return operation


def send_object(engine: Engine, group: GroupBase, obj: Any, dst: int, tag: int) -> Operation:
    peer, key = _peer_and_key(group, "send_object", "dst", dst, tag)
    payload = dumps(obj, engine.membership)
    return engine.send("send_object", peer, key, (Mode.OBJECT, 0, len(payload)), (payload,), None)


def recv_object(engine: Engine, group: GroupBase, src: int, tag: int, allow: Sequence[type | str]) -> Operation:
    peer, key = _peer_and_key(group, "recv_object", "src", src, tag)
    names = allowed(allow, engine.membership, "recv_object")
    signature = (Mode.OBJECT, 0, engine.membership.limits.max_message_bytes)
    operation = engine.receive("recv_object", peer, key, signature, None, None)
    operation.finish = lambda _: loads(bytes_of(operation.buffer), names, engine.membership)
    return operation


def batch_p2p(engine: Engine, group: GroupBase, operations: Sequence[P2P]) -> Operation:
    """Start ``Group.batch_p2p``: all arguments are checked first, so that either all operations are started or none."""
    check_list(group, "batch_p2p", "operations", operations)
    for entry in operations:
        _check_entry(group, entry)
    whole = BatchOperation(engine, len(operations))
    with engine.lock:
        if engine.register(whole, ()):
            whole.take([_start_entry(engine, group, entry) for entry in operations])
    return whole


def _check_entry(group: GroupBase, entry: Any) -> None:
    if not isinstance(entry, P2P) or entry.kind not in _CHECKS:
        what = f"{type(entry).__name__} given where P2P('send' | 'recv', ...) is expected"
        raise invalid(group, "batch_p2p", what, "pass P2P entries")
    _CHECKS[entry.kind](group, "batch_p2p", entry.tensor)
    _peer_and_key(group, "batch_p2p", "peer", entry.peer, entry.tag)


def _start_entry(engine: Engine, group: GroupBase, entry: P2P) -> Operation:
    start = send if entry.kind == "send" else recv
    return start(engine, group, entry.tensor, entry.peer, entry.tag)
