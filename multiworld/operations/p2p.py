"""Point-to-point operations: each function checks its arguments and starts the operation with its peer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import torch

from multiworld.matching.device import DeviceEnd
from multiworld.matching.memory import bytes_of
from multiworld.matching.operation import BatchOperation, Operation
from multiworld.matching.protocol import Mode, message_key
from multiworld.matching.send_receive import Payload, Received, Signature
from multiworld.serialization.pickling import allowed, dumps, loads
from multiworld.tensors.checks import (
    check_device,
    check_list,
    check_number,
    check_rank,
    check_source,
    check_tensor,
    invalid,
)
from multiworld.tensors.on_device import device_for, not_capturing, received, received_tensor, said_of, source, target
from multiworld.tensors.shapes import shape_bytes, with_shape
from multiworld.tensors.staging import copy_to, on_cpu, receive_buffer, writable

if TYPE_CHECKING:
    from multiworld.engine.engine import Engine
    from multiworld.matching.membership import GroupMembers

MAX_TAG = 2**31 - 1

#: of a receive: what is posted, the memory, and our end where it is on the device
_Place = tuple[Signature, torch.Tensor, DeviceEnd | None]
#: of a send: what is offered, the payload in pieces, the memory of the first, and our end where it is on the device
_Source = tuple[Signature, Payload, torch.Tensor, DeviceEnd | None]
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


def _peer_and_key(group: GroupMembers, operation: str, what: str, rank: int, tag: int) -> tuple[int, int]:
    peer = group.ranks[check_rank(group, operation, what, rank)]
    if peer == group.member.world_rank:
        raise invalid(group, operation, f"{what} is our own rank {rank}", "copy the tensor instead")
    return peer, _key(group, operation, tag)


def _key(group: GroupMembers, operation: str, tag: int) -> int:
    number = tag if type(tag) is int else check_number(group, operation, "tag", tag)
    if not 0 <= number <= MAX_TAG:
        raise invalid(group, operation, f"tag {number} is not in 0..{MAX_TAG}", "choose another tag")
    return message_key(group.gid, number)


def send(
    engine: Engine, group: GroupMembers, tensor: torch.Tensor, dst: int, tag: int, stream: bool = False
) -> Operation:
    peer, key = _peer_and_key(group, "send", "dst", dst, tag)
    code = check_source(group, "send", tensor)
    return engine.send("send", peer, key, *_source_of(engine, group, tensor, code, stream))


def _source_of(engine: Engine, group: GroupMembers, tensor: torch.Tensor, code: int, stream: bool) -> _Source:
    """Prepare the send of a checked tensor; all that is copied or asked of the device is done here."""
    device = None if engine.device is None else device_for(engine, group, "send", tensor)
    if device is not None:
        plain, end = source(device, tensor, stream)
        return (Mode.DEVICE, code, plain.nbytes), (), plain, end
    host = on_cpu(tensor)
    view = bytes_of(host)
    return (Mode.FIXED, code, len(view)), (view,), host, None


def recv(
    engine: Engine, group: GroupMembers, tensor: torch.Tensor, src: int | None, tag: int, stream: bool = False
) -> Operation:
    if src is not None:
        peer, key = _peer_and_key(group, "recv", "src", src, tag)
        code = check_tensor(group, "recv", tensor)
        place = _place_of(engine, group, tensor, code, stream)
        return _finished(engine, group, tensor, engine.receive("recv", peer, key, *place), place)
    peers, key = _others(engine, group), _key(group, "recv", tag)
    code = check_tensor(group, "recv", tensor)
    place = _place_of(engine, group, tensor, code, stream)
    return _finished(engine, group, tensor, engine.receive_any(peers, key, *place), place)


def _place_of(engine: Engine, group: GroupMembers, tensor: torch.Tensor, code: int, stream: bool) -> _Place:
    """Find what is posted for a checked tensor, and the memory that the payload goes to."""
    device = None if engine.device is None else device_for(engine, group, "recv", tensor)
    if device is not None:
        return (Mode.DEVICE, code, tensor.nbytes), tensor, target(device, tensor, stream)
    host = receive_buffer(tensor)
    return (Mode.FIXED, code, len(bytes_of(host))), host, None


def _finished(
    engine: Engine, group: GroupMembers, tensor: torch.Tensor, operation: Received, place: _Place
) -> Received:
    """Say what ends a receive in its caller's thread; nothing where the payload and its rank need nothing more."""
    _, memory, end = place
    if end is not None:
        operation.finish = received(group, tensor, operation)
    elif group.size != engine.membership.size or memory is not tensor:
        operation.finish = partial(_received, group, tensor, memory)
    return operation


def _others(engine: Engine, group: GroupMembers) -> tuple[int, ...]:
    """World ranks of the other members."""
    peers = tuple(rank for rank in group.ranks if rank != engine.membership.rank)
    if not peers:
        raise invalid(group, "recv", "there is nobody else in the group", "receive in a group of two or more")
    return peers


def _received(group: GroupMembers, tensor: torch.Tensor, host: torch.Tensor, peer: int) -> int:
    if host is not tensor:
        copy_to(writable(tensor), host)
    return group.ranks.index(peer)


def send_tensor(
    engine: Engine, group: GroupMembers, tensor: torch.Tensor, dst: int, tag: int, stream: bool = False
) -> Operation:
    """Start ``Group.send_tensor``: the payload, then the shape, so that the payload lies aligned on the other side."""
    code = check_source(group, "send_tensor", tensor)
    peer, key = _peer_and_key(group, "send_tensor", "dst", dst, tag)
    device = device_for(engine, group, "send_tensor", tensor)
    if device is not None:
        plain, end = source(device, tensor, stream)
        return engine.send("send_tensor", peer, key, (Mode.TENSOR, code, plain.nbytes), said_of(plain), plain, end)
    host = on_cpu(tensor)
    view = bytes_of(host)
    shape = shape_bytes(host)
    signature = (Mode.TENSOR, code, len(view) + len(shape))
    return engine.send("send_tensor", peer, key, signature, (view, shape), host)


def recv_tensor(
    engine: Engine, group: GroupMembers, src: int, tag: int, device: torch.device | str | None, stream: bool = False
) -> Operation:
    place = check_device(group, "recv_tensor", device)
    peer, key = _peer_and_key(group, "recv_tensor", "src", src, tag)
    us, end = engine.membership, None
    if engine.device is not None:
        end = DeviceEnd(engine.device, not_capturing(group, "recv_tensor", engine.device).now(), streamed=stream)
    signature = (Mode.TENSOR, 0, us.max_message_bytes)
    operation = engine.receive("recv_tensor", peer, key, signature, None, end)

    def finish(_: Any) -> torch.Tensor:
        if operation.shape is not None:
            return received_tensor(engine, peer, operation).to(place)
        return with_shape(us, peer, operation.dtype, operation.buffer).to(place)

    operation.finish = finish
    return operation


def send_object(engine: Engine, group: GroupMembers, obj: Any, dst: int, tag: int) -> Operation:
    peer, key = _peer_and_key(group, "send_object", "dst", dst, tag)
    payload = dumps(obj, engine.membership)
    signature = (Mode.OBJECT, 0, len(payload))
    return engine.send("send_object", peer, key, signature, (payload,), None)


def recv_object(engine: Engine, group: GroupMembers, src: int, tag: int, allow: Sequence[type | str]) -> Operation:
    peer, key = _peer_and_key(group, "recv_object", "src", src, tag)
    names = allowed(allow, engine.membership, "recv_object")
    signature = (Mode.OBJECT, 0, engine.membership.max_message_bytes)
    operation = engine.receive("recv_object", peer, key, signature, None)
    operation.finish = lambda _: loads(bytes_of(operation.buffer), names, engine.membership)
    return operation


def batch_p2p(engine: Engine, group: GroupMembers, operations: Sequence[P2P], stream: bool = False) -> Operation:
    """Start ``Group.batch_p2p``: all arguments are checked before any is started, so either all are started or none."""
    check_list(group, "batch_p2p", "operations", operations)
    starts = [_prepared(engine, group, entry, stream) for entry in operations]
    whole = BatchOperation(engine, len(starts))
    with engine.lock:
        if engine.register(whole, ()):
            with engine.together():
                parts = [start() for start in starts]
            whole.take(parts)
    return whole


def _prepared(engine: Engine, group: GroupMembers, entry: Any, stream: bool) -> Callable[[], Operation]:
    """Check one entry; what starts it."""
    if not isinstance(entry, P2P) or entry.kind not in _CHECKS:
        what = f"{type(entry).__name__} given where P2P('send' | 'recv', ...) is expected"
        raise invalid(group, "batch_p2p", what, "pass P2P entries")
    code = _CHECKS[entry.kind](group, "batch_p2p", entry.tensor)
    peer, key = _peer_and_key(group, "batch_p2p", "peer", entry.peer, entry.tag)
    if entry.kind == "send":
        return partial(engine.send, "send", peer, key, *_source_of(engine, group, entry.tensor, code, stream))
    place = _place_of(engine, group, entry.tensor, code, stream)
    return lambda: _finished(engine, group, entry.tensor, engine.receive("recv", peer, key, *place), place)
