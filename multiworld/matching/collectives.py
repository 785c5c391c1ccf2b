"""Collectives are agreed on first: everybody tells everybody what it calls, and all compare.

Small payloads travel with that; then the exchange is the whole collective. For larger ones the backend is called once
all agree, so it never sees lengths that differ. If anything differs, every member sees the same signatures and raises
``TensorMismatch``, and the backend is not called at all. All methods are called under the session's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from multiworld.errors import InvalidArgument, TensorMismatch
from multiworld.matching.operation import Operation
from multiworld.matching.plan import Bytes, Plan, describe, disagreement, may_be_signature
from multiworld.net.frames import Kind
from multiworld.ops.memory import room_for

if TYPE_CHECKING:
    from multiworld.net.lane import Done
    from multiworld.session import Session


class CollectiveOperation(Operation):
    """A collective of a group, from its signature to its end."""

    __slots__ = ("gid", "heard", "plan", "ranks", "seq")

    def __init__(self, session: Session, gid: int, ranks: tuple[int, ...], plan: Plan) -> None:
        super().__init__(session, plan.name, plan.buffers)
        self.gid = gid
        self.ranks = ranks
        self.plan = plan
        self.seq = -1
        self.heard: dict[int, tuple[bytes, memoryview]] = {}
        self.finish = plan.finish

    def give_back(self) -> None:
        """See ``Operation.give_back``; the others count on it, so it goes on with copies."""
        if self.withdrawn and not self.running and self.plan.buffers is not None:
            self.plan.buffers.own()

    def loans(self) -> Sequence[torch.Tensor]:
        """See ``Operation.loans``."""
        return () if self.plan.buffers is None else self.plan.buffers.loans()

    def needs(self, peer: int) -> bool:
        """See ``Operation.needs``."""
        return peer in self.ranks and peer not in self.heard and peer != self.session.rank

    def awaits(self) -> tuple[int, ...]:
        """See ``Operation.awaits``; the backend waits for any of the members."""
        return tuple(rank for rank in self.ranks if rank != self.session.rank) if self.running else self.missing()

    def missing(self) -> tuple[int, ...]:
        """World ranks that have not called it yet."""
        return tuple(rank for rank in self.ranks if self.needs(rank))

    def waiting_for(self) -> str:
        """See ``Operation.waiting_for``."""
        missing = self.missing()
        return f"ranks {list(missing)} to call it" if missing else "the backend to finish"

    def unmade(self, error: Exception) -> InvalidArgument:
        """All members did their part, but the result cannot be made of it here."""
        session = self.session
        return InvalidArgument(
            session.name, f"the result cannot be made: {error}",
            cause="torch cannot do this for this dtype or reduction",
            remedy="convert the tensor, or reduce otherwise; the world goes on",
            generation=session.generation, rank=session.rank, operation=self.name,
        )  # fmt: skip


#: how many collectives a peer may be ahead of us
MAX_EARLY = 4096
_NUMBERS = 1 << 32  # sequence numbers are this many, and begin anew


class Agreement:
    """The collectives of one group, in order."""

    def __init__(self, session: Session, gid: int) -> None:
        self.session = session
        self.gid = gid
        self._next = 0
        self._ours: dict[int, CollectiveOperation] = {}
        self._early: dict[int, dict[int, tuple[bytes, memoryview]]] = {}

    def start(self, operation: CollectiveOperation) -> None:
        """Tell the others what we call, and go on if all have told us."""
        seq = operation.seq = self._next
        self._next = (seq + 1) % _NUMBERS
        early = self._early.pop(seq, {})
        operation.heard = {peer: said for peer, said in early.items() if peer in operation.ranks}
        self._ours[seq] = operation
        packed = operation.plan.wire_signature()
        for place, peer in enumerate(operation.ranks):
            if peer != self.session.rank:
                self._tell(peer, seq, packed, operation.plan.outgoing(place))
        self._check(operation)

    def expect(self, peer: int, seq: int, split: int, nbytes: int) -> tuple[memoryview | None, Done | None]:
        """A peer's signature arrives: where to put it."""
        ahead = (seq - self._next) % _NUMBERS
        ours = self._ours.get(seq)
        if not may_be_signature(split) or not 0 <= nbytes - split <= self.session.max_message_bytes:
            why = f"a signature of {split} bytes in {nbytes}"
        elif (ahead >= MAX_EARLY) if ours is None else (peer not in ours.ranks or peer in ours.heard):
            why = f"a collective of number {seq}, which cannot be"
        else:
            return self._place(peer, seq, split, nbytes)
        self.session.protocol_error(self.session.lanes[peer], why)
        return None, None

    def _place(self, peer: int, seq: int, split: int, nbytes: int) -> tuple[memoryview, Done]:
        memory = room_for(nbytes)
        return memory, lambda: self._heard(peer, seq, bytes(memory[:split]), memory[split:])

    def _tell(self, peer: int, seq: int, packed: bytes, data: Bytes | None) -> None:
        parts: tuple[Any, ...] = (packed,) if data is None else (packed, data)
        nbytes = sum(map(len, parts))
        self.session.lanes[peer].put(
            Kind.SIGNATURE, flags=len(packed), seq=seq, key=self.gid, payload=parts, nbytes=nbytes
        )

    def _heard(self, peer: int, seq: int, packed: bytes, data: memoryview) -> None:
        operation = self._ours.get(seq)
        if operation is None:
            self._early.setdefault(seq, {})[peer] = packed, data
            return
        operation.heard[peer] = packed, data
        self._check(operation)

    def _check(self, operation: CollectiveOperation) -> None:
        if len(operation.heard) < len(operation.ranks) - 1:
            return
        del self._ours[operation.seq]
        own = operation.plan.wire_signature()
        signatures = [operation.heard[r][0] if r != self.session.rank else own for r in operation.ranks]
        if disagreement(signatures):
            operation.fail(self._mismatch(operation, signatures))
        elif operation.plan.launch is None:
            parts = [operation.heard[r][1] if r != self.session.rank else None for r in operation.ranks]
            self._absorb(operation, parts)
        else:
            self.session.launch(operation)

    def _absorb(self, operation: CollectiveOperation, parts: list[memoryview | None]) -> None:
        """Make the result of what all sent. What fails in that is the call's own affair, not the fault of the peer
        whose part came last; and the others have ours already, so nobody is left waiting."""
        try:
            value = operation.plan.absorb(parts)
        except (RuntimeError, TypeError) as error:
            operation.fail(operation.unmade(error))
            return
        operation.complete(value)

    def _mismatch(self, operation: CollectiveOperation, signatures: list[bytes]) -> TensorMismatch:
        session = self.session
        said = dict(zip(operation.ranks, map(describe, signatures), strict=True))
        ours = said.pop(session.rank)
        others = "; ".join(f"rank {rank} calls {text}" for rank, text in said.items())
        return TensorMismatch(
            session.name, f"rank {session.rank} calls {ours}; {others}", ours=ours, theirs=said,
            generation=session.generation, rank=session.rank,
        )  # fmt: skip
