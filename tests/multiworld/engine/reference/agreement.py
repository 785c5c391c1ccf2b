"""Agreement on collectives: each member tells all others what it calls, and all compare."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from multiworld.matching.agreement import CollectiveOperation
from multiworld.matching.collective_plan import MAX_MEMBERS
from multiworld.matching.operation import Launch, Registry

from .frames import Kind, Placement
from .memory import room_for
from .sink import Sink

#: bytes of a fingerprint's head
HEAD_BYTES = 24
#: how many collectives a peer may be ahead of us
MAX_EARLY = 4096
#: the longest payload that comes with a fingerprint
MAX_PAYLOAD_BYTES = 512 * 1024
_NUMBERS = 1 << 32  # sequence numbers are this many, and begin anew


class GroupCollectives:
    """The collectives of one group, in order; ``launch`` runs an agreed one on the backend."""

    def __init__(
        self,
        registry: Registry,
        sinks: Mapping[int, Sink],
        gid: int,
        launch: Callable[[int, Launch], None],
    ) -> None:
        self._registry, self._sinks, self._gid, self._launch = registry, sinks, gid, launch
        self._rank = registry.membership.rank
        self._next = 0
        self._ours: dict[int, CollectiveOperation] = {}
        self._early: dict[int, dict[int, tuple[bytes, memoryview]]] = {}

    def start(self, operation: CollectiveOperation) -> None:
        """Tell the others what we call, and go on if all have told us."""
        seq = operation.seq = self._next
        self._next = (seq + 1) % _NUMBERS
        early = self._early.pop(seq, {})
        operation.heard = {peer: said for peer, said in early.items() if peer in operation.ranks}
        self._ours[seq], packed = operation, operation.fingerprint
        for place, peer in enumerate(operation.ranks):
            if peer != self._rank:
                data = operation.plan.outgoing(place)
                parts: tuple[Any, ...] = (packed,) if data is None else (packed, data)
                self._sinks[peer].put(Kind.FINGERPRINT, 0, len(packed), seq, self._gid, parts, sum(map(len, parts)))
        self._check(operation)

    def expect(self, peer: int, seq: int, split: int, nbytes: int) -> Placement:
        """A peer's fingerprint arrives: where to put it."""
        ahead = (seq - self._next) % _NUMBERS
        ours = self._ours.get(seq)
        # The limit of the caller is for messages whose length the sender decides.
        longest = max(MAX_PAYLOAD_BYTES, self._registry.membership.max_message_bytes)
        if not may_be_fingerprint(split) or not 0 <= nbytes - split <= longest:
            why = f"a fingerprint of {split} bytes in {nbytes}"
        elif (ahead >= MAX_EARLY) if ours is None else (peer not in ours.ranks or peer in ours.heard):
            why = f"a collective of number {seq}, which cannot be"
        else:
            memory = room_for(nbytes, head=split)  # the payload is computed on where it lies
            return memory, lambda: self._heard(peer, seq, bytes(memory[:split]), memory[split:])
        self._registry.protocol_error(peer, why)
        return None, None

    def _heard(self, peer: int, seq: int, packed: bytes, data: memoryview) -> None:
        operation = self._ours.get(seq)
        if operation is None:
            self._early.setdefault(seq, {})[peer] = packed, data
            return
        if peer not in operation.ranks:  # we have begun it since, in a group that has this number by chance
            self._registry.protocol_error(peer, f"a collective of number {seq}, which cannot be")
            return
        operation.heard[peer] = packed, data
        self._check(operation)

    def _check(self, operation: CollectiveOperation) -> None:
        if len(operation.heard) < len(operation.ranks) - 1:
            return
        del self._ours[operation.seq]
        heard, us = operation.heard, self._rank
        fingerprints = [heard[r][0] if r != us else operation.fingerprint for r in operation.ranks]
        if disagreement(fingerprints):
            operation.fail(operation.mismatch(fingerprints))
        elif operation.plan.launch is None:
            operation.absorb([heard[r][1] if r != us else None for r in operation.ranks])
        else:
            self._launch(self._gid, operation.launched())


def may_be_fingerprint(nbytes: int) -> bool:
    """Return whether a fingerprint can have that length: the head, and two numbers for each member if there are
    splits."""
    return HEAD_BYTES <= nbytes <= HEAD_BYTES + 16 * MAX_MEMBERS and (nbytes - HEAD_BYTES) % 16 == 0


def disagreement(packed: Sequence[bytes]) -> bool:
    """Return whether the members' fingerprints do not fit together; every member comes to the same verdict."""
    heads = {part[:HEAD_BYTES] for part in packed}
    lengths = {len(part) for part in packed}
    if len(heads) > 1 or len(lengths) > 1:
        return True
    size = len(packed)
    if len(packed[0]) == HEAD_BYTES:
        return False
    tables = [struct.unpack_from(f"<{2 * size}Q", part, HEAD_BYTES) for part in packed]
    return any(tables[a][b] != tables[b][size + a] for a in range(size) for b in range(size))
