"""Starters of point-to-point operations: arguments checked, operation queued with its peer's mailbox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import torch

from multiworld.matching.any_source import AnyReceive
from multiworld.matching.mailbox import ReceiveOperation, SendOperation
from multiworld.matching.operation import Operation
from multiworld.net.frames import Mode, message_key
from multiworld.ops.batch import BatchOperation
from multiworld.ops.memory import (
    bytes_of,
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
    from multiworld.ops.base import GroupBase
    from multiworld.session import Session

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


def _start_send(
    session: Session,
    name: str,
    peer: int,
    key: int,
    signature: tuple[int, int, int],
    payload: tuple[Any, ...],
    keep: Any,
) -> Operation:
    box = session.mailbox(peer)
    operation = SendOperation(session, name, box, key, signature, payload, keep)
    with session.lock:
        if session.admit(operation, (peer,)):
            box.send(operation)
    return operation


def _start_receive(
    session: Session,
    name: str,
    peer: int,
    key: int,
    signature: tuple[int, int, int],
    view: memoryview | None,
    keep: Any,
) -> ReceiveOperation:
    box = session.mailbox(peer)
    operation = ReceiveOperation(session, name, box, key, signature, view, keep)
    with session.lock:
        # What a peer sent before it left is still there to be received.
        if session.admit(operation, () if box.kept.get(key) else (peer,)):
            box.receive(operation)
    return operation


def send(session: Session, group: GroupBase, tensor: torch.Tensor, dst: int, tag: int) -> Operation:
    """Start ``Group.send``."""
    code = check_source(group, "send", tensor)
    peer, key = _peer_and_key(group, "send", "dst", dst, tag)
    source = on_cpu(tensor)
    view = bytes_of(source)
    return _start_send(session, "send", peer, key, (Mode.FIXED, code, len(view)), (view,), source)


def recv(session: Session, group: GroupBase, tensor: torch.Tensor, src: int | None, tag: int) -> Operation:
    """Start ``Group.recv``."""
    code = check_tensor(group, "recv", tensor)
    target = receive_buffer(tensor)
    view = bytes_of(target)
    signature = (Mode.FIXED, code, len(view))
    operation: Operation
    if src is None:
        operation = _start_any(session, group, _key(group, "recv", tag), signature, view, target)
    else:
        peer, key = _peer_and_key(group, "recv", "src", src, tag)
        operation = _start_receive(session, "recv", peer, key, signature, view, target)
    if group.size != session.size or target is not tensor:
        operation.finish = lambda source: _received(group, tensor, target, source)
    return operation


def _received(group: GroupBase, tensor: torch.Tensor, target: torch.Tensor, source: int) -> int:
    if target is not tensor:
        writable(tensor).copy_(target)
    return group.ranks.index(source)


def _start_any(
    session: Session, group: GroupBase, key: int, signature: tuple[int, int, int], view: memoryview, keep: Any
) -> Operation:
    peers = tuple(rank for rank in group.ranks if rank != session.rank)
    if not peers:
        raise invalid(group, "recv", "there is nobody else in the group", "receive in a group of two or more")
    operation = AnyReceive(session, key, signature, view, keep, peers)
    with session.lock:
        if session.admit(operation, operation.unreachable()):
            operation.start()
    return operation


def send_tensor(session: Session, group: GroupBase, tensor: torch.Tensor, dst: int, tag: int) -> Operation:
    """Start ``Group.send_tensor``: the payload, then the shape, so that the payload lies aligned on the other side."""
    code = check_source(group, "send_tensor", tensor)
    peer, key = _peer_and_key(group, "send_tensor", "dst", dst, tag)
    source = on_cpu(tensor)
    view = bytes_of(source)
    shape = shape_bytes(source)
    signature = (Mode.TENSOR, code, len(view) + len(shape))
    return _start_send(session, "send_tensor", peer, key, signature, (view, shape), source)


def recv_tensor(session: Session, group: GroupBase, src: int, tag: int, device: torch.device | str | None) -> Operation:
    """Start ``Group.recv_tensor``."""
    place = check_device(group, "recv_tensor", device)
    peer, key = _peer_and_key(group, "recv_tensor", "src", src, tag)
    signature = (Mode.TENSOR, 0, session.max_message_bytes)
    operation = _start_receive(session, "recv_tensor", peer, key, signature, None, None)
    operation.finish = lambda _: with_shape(session, operation.box.lane.peer, operation.dtype, operation.buffer).to(
        place
    )
    return operation


def send_object(session: Session, group: GroupBase, obj: Any, dst: int, tag: int) -> Operation:
    """Start ``Group.send_object``."""
    peer, key = _peer_and_key(group, "send_object", "dst", dst, tag)
    payload = dumps(obj, session)
    return _start_send(session, "send_object", peer, key, (Mode.OBJECT, 0, len(payload)), (payload,), None)


def recv_object(session: Session, group: GroupBase, src: int, tag: int, allow: Sequence[type | str]) -> Operation:
    """Start ``Group.recv_object``."""
    peer, key = _peer_and_key(group, "recv_object", "src", src, tag)
    names = allowed(allow, session, "recv_object")
    signature = (Mode.OBJECT, 0, session.max_message_bytes)
    operation = _start_receive(session, "recv_object", peer, key, signature, None, None)
    operation.finish = lambda _: loads(bytes_of(operation.buffer), names, session)
    return operation


def batch_p2p(session: Session, group: GroupBase, operations: Sequence[P2P]) -> Operation:
    """Start ``Group.batch_p2p``: all arguments are checked first, so that either all operations are started or none."""
    check_list(group, "batch_p2p", "operations", operations)
    for entry in operations:
        _check_entry(group, entry)
    whole = BatchOperation(session, len(operations))
    with session.lock:
        if session.admit(whole, ()):
            whole.take([_start_entry(session, group, entry) for entry in operations])
    return whole


def _check_entry(group: GroupBase, entry: Any) -> None:
    if not isinstance(entry, P2P) or entry.kind not in _CHECKS:
        what = f"{type(entry).__name__} given where P2P('send' | 'recv', ...) is expected"
        raise invalid(group, "batch_p2p", what, "pass P2P entries")
    _CHECKS[entry.kind](group, "batch_p2p", entry.tensor)
    _peer_and_key(group, "batch_p2p", "peer", entry.peer, entry.tag)


def _start_entry(session: Session, group: GroupBase, entry: P2P) -> Operation:
    start = send if entry.kind == "send" else recv
    return start(session, group, entry.tensor, entry.peer, entry.tag)
