"""The plan of a collective: its fingerprint, what it sends to whom, and how a backend is called for it."""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import torch

from multiworld.matching.driver import Driver
from multiworld.matching.protocol import dtype_name

#: Collectives in which a member sends up to this much in all travel with the fingerprints; larger ones go in parts once
#: all agree. Below it the extra round of agreement would cost more than the payload: one exchange does both.
INLINE_BYTES: Final = 512 * 1024
NO_REDUCTION: Final = 255
#: the largest group whose fingerprints are read; a world has no more members
MAX_MEMBERS: Final = 4096

#: the names of reductions; the place in this tuple is the code on the wire: append only
REDUCTIONS: Final = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")

Bytes = memoryview | bytes
Parts = Sequence[memoryview | None]
#: bytes to and from each group rank
Splits = tuple[Sequence[int], Sequence[int]]


class Part(NamedTuple):
    """Memory that one member sends to, or receives from, the group rank ``place``: a flat tensor."""

    receives: bool
    place: int
    tensor: torch.Tensor


#: parts that are moved together; between them the plan computes
Steps = Iterator[Sequence[Part]]


class Collective(enum.IntEnum):
    """The kinds of collectives; the number is on the wire."""

    BARRIER = 0
    BROADCAST = 1
    ALL_REDUCE = 2
    REDUCE = 3
    ALL_GATHER = 4
    GATHER = 5
    SCATTER = 6
    REDUCE_SCATTER = 7
    ALL_TO_ALL = 8
    BROADCAST_OBJECT = 9
    ALL_GATHER_OBJECT = 10
    GATHER_OBJECT = 11
    SCATTER_OBJECT = 12


#: digest of the group's ranks and label; kind, dtype code, reduction, way (0 in parts, 1 with the fingerprints, 2 on
#: the device); root (group rank), bytes of one piece
_HEAD: Final = struct.Struct("<QBBBBiQ")
_ON_DEVICE: Final = 2


class Buffers(Protocol):
    """The tensors of a collective, those of its caller among them."""

    def own(self) -> None:
        """Give every tensor that is the caller's memory memory of its own, with what is in it now.

        Where the tensors are on the device, without the lock, in the caller's thread.
        """

    def loans(self) -> Sequence[torch.Tensor]:
        """The caller's memory, or what is used instead of it."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The facts that all members must agree on.

    Attributes:
        kind: of the collective.
        nbytes: bytes of one piece.
        dtype: code of the dtype.
        root: group rank; -1 for none.
        reduction: code of the reduction.
        inline: whether the payloads travel with the fingerprints.
        on_device: whether the tensors are, and stay, on the device.
        splits: bytes to and from each group rank, where they may differ by pair.
    """

    kind: Collective
    nbytes: int = 0
    dtype: int = 0
    root: int = -1
    reduction: int = NO_REDUCTION
    inline: bool = True
    on_device: bool = False
    splits: Splits | None = None

    def packed(self, digest: int) -> bytes:
        """As it is sent by a member of the group with this ``digest``."""
        way = _ON_DEVICE if self.on_device else self.inline
        head = _HEAD.pack(digest, self.kind, self.dtype, self.reduction, way, self.root, self.nbytes)
        if self.splits is None:
            return head
        to, of = self.splits
        return head + struct.pack(f"<{len(to)}Q{len(of)}Q", *to, *of)


@dataclass(slots=True)
class Plan:
    """One collective call, checked, ready to be agreed on.

    Attributes:
        name: of the operation, for messages.
        fingerprint: what all members must agree on.
        outgoing: payload for a group rank that travels with the fingerprint; None for none.
        absorb: takes the payloads of all group ranks (ours None) and writes the result.
        launch: starts it on the backend of the device; None where nothing is to be done there.
        steps: moves it in parts over the lanes; None where all travels with the fingerprints, or on the device.
        finish: makes the result in the thread that waits, such as a copy back to a device.
        buffers: its tensors.
        streamed: whether the caller goes on as soon as it is enqueued on the device.
    """

    name: str
    fingerprint: Fingerprint
    outgoing: Callable[[int], Bytes | None]
    absorb: Callable[[Parts], Any]
    launch: Callable[[Driver], Any] | None = None
    steps: Callable[[], Steps] | None = None
    finish: Callable[[Any], Any] | None = None
    buffers: Buffers | None = None
    streamed: bool = False

    @property
    def begins(self) -> bool:
        """True if there is something to begin once all agree."""
        return self.launch is not None or self.steps is not None


def same_group(packed: Sequence[bytes]) -> bool:
    """Return whether the members mean the same group; groups of different ranks may have the same number by chance."""
    return len({part[:8] for part in packed}) == 1


def describe(packed: bytes) -> str:
    """A fingerprint in words, for messages."""
    _, kind, dtype, reduction, way, root, nbytes = _HEAD.unpack_from(packed)
    words = [Collective(kind).name.lower() if kind in set(Collective) else f"operation #{kind}"]
    if kind not in (Collective.BARRIER, *range(Collective.BROADCAST_OBJECT, Collective.SCATTER_OBJECT + 1)):
        words.append(f"of {nbytes} bytes of {dtype_name(dtype)}{' on the device' if way == _ON_DEVICE else ''}")
    if root >= 0:
        words.append(f"at rank {root}")
    if reduction != NO_REDUCTION:
        words.append(f"with {REDUCTIONS[reduction] if reduction < len(REDUCTIONS) else f'reduction #{reduction}'}")
    if count := max(0, len(packed) - _HEAD.size) // 16:
        numbers = struct.unpack_from(f"<{2 * count}Q", packed, _HEAD.size)
        words.append(f"sending {list(numbers[:count])} and expecting {list(numbers[count:])} bytes by rank")
    return " ".join(words)
