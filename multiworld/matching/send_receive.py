"""Messages: what both sides say of one, and the errors of those that differ."""

from __future__ import annotations

import struct
from typing import Any, Final

from multiworld.errors import TensorMismatch
from multiworld.matching.device import DeviceEnd
from multiworld.matching.operation import Operation, Registry
from multiworld.matching.protocol import Mode, dtype_name

Signature = tuple[int, int, int]  # mode, dtype code, bytes (FIXED, DEVICE) or limit in bytes
Payload = tuple[Any, ...]
End = DeviceEnd | None  # where a payload on the device is, or goes
#: modes in which both sides name the length
EXACT: Final = frozenset(map(int, (Mode.FIXED, Mode.DEVICE)))
#: what is said of a tensor on the device: bytes of its payload; its shape follows, see ``tensors.shapes``
LENGTH: Final = struct.Struct("<Q")


def describe(mode: int, dtype: int, nbytes: int) -> str:
    """A signature in words."""
    if mode in EXACT:
        return f"{nbytes} bytes of {dtype_name(dtype)}{' on the device' if mode == Mode.DEVICE else ''}"
    return "a tensor with its shape" if mode == Mode.TENSOR else "an object"


def refused_send(operation: Operation, peer: int, ours: Signature, theirs: Signature) -> TensorMismatch:
    """Make the error of a send whose receive is for something else."""
    said = describe(*ours), describe(*theirs)
    if ours[0] == theirs[0] and ours[0] not in EXACT:
        said = f"{ours[2]} bytes", f"at most {theirs[2]} bytes"
    return _mismatch(operation, f"sends {said[0]}, rank {peer} expects {said[1]}", peer, said, {ours[0], theirs[0]})


def refused_receive(operation: Operation, peer: int, ours: Signature, theirs: Signature) -> TensorMismatch:
    """Make the error of a receive for which something else comes."""
    said = describe(*ours), describe(*theirs)
    return _mismatch(operation, f"expects {said[0]}, rank {peer} sends {said[1]}", peer, said, {ours[0], theirs[0]})


def _mismatch(operation: Operation, what: str, peer: int, said: tuple[str, str], modes: set[int]) -> TensorMismatch:
    us = operation.registry.membership
    cause = remedy = None
    if modes == EXACT:
        cause = "one side passes a tensor on the CPU, the other one on the device"
        remedy = "pass both on the device, or both on the CPU; the world is still usable"
    sides: dict[str, Any] = {"ours": said[0], "theirs": {peer: said[1]}}
    return TensorMismatch(us.name, f"rank {us.rank} {what}", cause=cause, remedy=remedy, **sides, **us.where())


class Received(Operation):
    """A receive, as what makes its result sees it.

    Attributes:
        dtype: code of the message's dtype.
        buffer: the message in memory of our own, as a flat tensor of bytes; None if it is the caller's.
        shape: what was said of a tensor that stays on the device.
        end: where the payload is on the device.
    """

    def __init__(self, registry: Registry, name: str, keep: Any, dtype: int = 0, end: End = None) -> None:
        super().__init__(registry, name, keep)
        self.dtype, self.end = dtype, end
        self.buffer: Any = None
        self.shape: bytes | None = None

    @property
    def taken(self) -> DeviceEnd | None:
        """A message on the device that was kept, to be copied by the caller."""
        return None
