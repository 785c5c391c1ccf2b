"""Tensors that stay on the device: whether they do, and what is done with them in the caller's thread."""

from __future__ import annotations

from collections.abc import Callable

import torch

from multiworld.engine.engine import Engine
from multiworld.matching.device import Device, DeviceEnd
from multiworld.matching.membership import GroupMembers
from multiworld.matching.send_receive import LENGTH, Received
from multiworld.tensors.checks import invalid
from multiworld.tensors.shapes import described, shape_bytes
from multiworld.tensors.staging import readable, writable


def device_for(engine: Engine, group: GroupMembers, operation: str, tensor: torch.Tensor) -> Device | None:
    """The device, if ``tensor``, which was checked, stays there; None if it travels through the CPU.

    Raises:
        InvalidArgument: the current stream is being captured; nothing was sent.
    """
    device = engine.device
    if device is None or not device.takes(tensor):
        return None
    return not_capturing(group, operation, device)


def not_capturing(group: GroupMembers, operation: str, device: Device) -> Device:
    """Check that the current stream is not being captured: what is matched with others cannot be replayed.

    Raises:
        InvalidArgument: it is.
    """
    if device.capturing():
        remedy = "call it outside of torch.cuda.graph(); a replay cannot be matched with the other members"
        raise invalid(group, operation, "the current CUDA stream is being captured into a graph", remedy)
    return device


def source(device: Device, tensor: torch.Tensor, stream: bool) -> tuple[torch.Tensor, DeviceEnd]:
    """``tensor`` as it is sent, and our end of the transfer."""
    plain = readable(tensor)
    flat = plain.reshape(-1).view(torch.uint8)
    return plain, DeviceEnd(device, device.now(), flat, stream)


def target(device: Device, tensor: torch.Tensor, stream: bool) -> DeviceEnd:
    """Our end of a transfer into ``tensor``."""
    return DeviceEnd(device, device.now(), writable(tensor).reshape(-1).view(torch.uint8), stream)


def said_of(tensor: torch.Tensor) -> tuple[bytes, ...]:
    """Return the length and shape that announce a tensor of ``send_tensor``."""
    return LENGTH.pack(tensor.nbytes), shape_bytes(tensor)


def received(group: GroupMembers, tensor: torch.Tensor, receive: Received) -> Callable[[int], int]:
    """Return the end of a receive, for its caller's thread: it copies a kept message and returns the sender's rank."""

    def finish(peer: int) -> int:
        kept = receive.taken
        if kept is not None and kept.data is not None:
            data = kept.device.adopt(kept.data, kept.moment)
            writable(tensor).reshape(-1).view(torch.uint8).copy_(data)
        return group.ranks.index(peer)

    return finish


def received_tensor(engine: Engine, peer: int, receive: Received) -> torch.Tensor:
    """The tensor that ``recv_tensor`` got on the device, for the calling thread's current stream."""
    end, shape = receive.end, receive.shape
    if end is None or shape is None:
        raise LookupError("no tensor came by the device")
    # Without memory it is an empty one: there was nothing to transfer.
    data = end.device.room(0, end.moment)[0] if end.data is None else end.device.adopt(end.data, end.moment)
    return described(engine.membership, peer, receive.dtype, data, shape)
