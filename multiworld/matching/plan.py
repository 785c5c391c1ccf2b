"""What a collective is about: its signature, what it sends to whom, and how the backend is called for it."""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from multiworld.net.frames import dtype_name
from multiworld.ops.reduction import reduction_name

if TYPE_CHECKING:
    from multiworld.drivers.base import Driver
    from multiworld.ops.staging_buffers import StagingBuffers

#: Collectives in which a member sends up to this much in all travel with the signatures, on the lanes; larger ones go
#: through the backend. Below it the extra round of agreement would cost more than the payload: one exchange does both.
INLINE_BYTES: Final = 512 * 1024
NO_REDUCTION: Final = 255
#: the largest group whose signatures are read; a world has no more members
MAX_MEMBERS: Final = 4096

Bytes = memoryview | bytes
Parts = Sequence[memoryview | None]


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


#: kind, dtype code, reduction, inline, root (group rank), bytes of one piece
_SIGNATURE: Final = struct.Struct("<BBBBiQ")


@dataclass(slots=True)
class Plan:
    """One collective call, checked, ready to be agreed on.

    Attributes:
        name: of the operation, for messages.
        signature: what all members must agree on, packed.
        outgoing: payload for a group rank that travels with the signature; None for none.
        absorb: takes the payloads of all group ranks (ours None) and writes the result.
        launch: starts it on the backend; None where all travels with the signatures.
        after: what is left to do when the backend is done.
        finish: makes the result in the thread that waits, such as a copy back to a device.
        buffers: its tensors.
        splits: bytes to and from each group rank, where they may differ by pair.
    """

    name: str
    signature: bytes
    outgoing: Callable[[int], Bytes | None]
    absorb: Callable[[Parts], Any]
    launch: Callable[[Driver], Any] | None = None
    after: Callable[[], Any] | None = None
    finish: Callable[[Any], Any] | None = None
    buffers: StagingBuffers | None = None
    splits: tuple[Sequence[int], Sequence[int]] | None = None

    def wire_signature(self) -> bytes:
        """The signature as it is sent, with the splits if there are any."""
        if self.splits is None:
            return self.signature
        to, of = self.splits
        return self.signature + struct.pack(f"<{len(to)}Q{len(of)}Q", *to, *of)


def signature(
    kind: Collective,
    nbytes: int = 0,
    dtype: int = 0,
    root: int = -1,
    reduction: int = NO_REDUCTION,
    inline: bool = True,
) -> bytes:
    """Pack what members must agree on."""
    return _SIGNATURE.pack(kind, dtype, reduction, inline, root, nbytes)


def may_be_signature(nbytes: int) -> bool:
    """Whether a signature can have that length: the fixed part, and two numbers for each member if there are splits."""
    return _SIGNATURE.size <= nbytes <= _SIGNATURE.size + 16 * MAX_MEMBERS and (nbytes - _SIGNATURE.size) % 16 == 0


def describe(packed: bytes) -> str:
    """A signature in words, for messages."""
    kind, dtype, reduction, _, root, nbytes = _SIGNATURE.unpack_from(packed)
    words = [Collective(kind).name.lower() if kind in set(Collective) else f"operation #{kind}"]
    if kind not in (Collective.BARRIER, *range(Collective.BROADCAST_OBJECT, Collective.SCATTER_OBJECT + 1)):
        words.append(f"of {nbytes} bytes of {dtype_name(dtype)}")
    if root >= 0:
        words.append(f"at rank {root}")
    if reduction != NO_REDUCTION:
        words.append(f"with {reduction_name(reduction)}")
    words.extend(_describe_splits(packed))
    return " ".join(words)


def _describe_splits(packed: bytes) -> list[str]:
    count = (len(packed) - _SIGNATURE.size) // 16
    if count <= 0:
        return []
    numbers = struct.unpack_from(f"<{2 * count}Q", packed, _SIGNATURE.size)
    return [f"sending {list(numbers[:count])} and expecting {list(numbers[count:])} bytes by rank"]


def disagreement(packed: Sequence[bytes]) -> bool:
    """Whether the members' signatures do not fit together; every member comes to the same verdict."""
    heads = {part[: _SIGNATURE.size] for part in packed}
    lengths = {len(part) for part in packed}
    if len(heads) > 1 or len(lengths) > 1:
        return True
    size = len(packed)
    if len(packed[0]) == _SIGNATURE.size:
        return False
    tables = [struct.unpack_from(f"<{2 * size}Q", part, _SIGNATURE.size) for part in packed]
    return any(tables[a][b] != tables[b][size + a] for a in range(size) for b in range(size))
