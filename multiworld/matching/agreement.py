"""A collective: each member tells all others what it calls, and all compare.

Small payloads travel with that; then the exchange is the whole collective. Larger ones go in parts, or on the device
through the backend, once all agree: no lengths differ there. If anything differs, every member sees the same
fingerprints and raises ``TensorMismatch``, and nothing is moved. All methods are called with the registry's lock held.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from multiworld.errors import InvalidArgument, TensorMismatch
from multiworld.matching.collective_plan import Plan, describe, same_group
from multiworld.matching.operation import Launch, Operation, Registry


class CollectiveOperation(Operation):
    """A collective of a group, from its fingerprint to its end."""

    in_step = True

    def __init__(self, registry: Registry, gid: int, digest: int, ranks: tuple[int, ...], plan: Plan) -> None:
        super().__init__(registry, plan.name, plan.buffers)
        self.gid = gid
        self.ranks = ranks
        self.plan = plan
        self.fingerprint = plan.fingerprint.packed(digest)
        self.seq = -1
        self.heard: dict[int, tuple[bytes, memoryview]] = {}
        self.finish = plan.finish
        self.copying = False  # the caller's memory is copied on the device, since its caller waits no more

    def give_back(self) -> None:
        """See ``Operation.give_back``; the others count on it, so it goes on with copies."""
        buffers = self.plan.buffers
        if not self.withdrawn or self.running or self.done or buffers is None:
            return
        if self.plan.fingerprint.on_device:
            self.copying = True
            if isinstance(self.launch, Launch):
                self.launch.ready = False
        else:
            buffers.own()

    def detach(self) -> None:
        super().detach()
        if not self.copying or self.plan.buffers is None:
            return
        self.plan.buffers.own()
        with self.registry.lock:
            self.copying = False
            if self.launch is not None:
                self.launch.set_ready()

    def loans(self) -> Sequence[torch.Tensor]:
        return () if self.plan.buffers is None else self.plan.buffers.loans()

    def needs(self, peer: int) -> bool:
        return peer in self.ranks and peer not in self.heard and peer != self.registry.membership.rank

    def ended_with(self, left: frozenset[int]) -> bool:
        """See ``Operation.ended_with``; what the backend does may end with one member and not with another."""
        return self.launch is None and any(rank in self.ranks and not self.needs(rank) for rank in left)

    def awaits(self) -> tuple[int, ...]:
        """See ``Operation.awaits``; the backend waits for any of the members."""
        if not self.running:
            return self.missing()
        return tuple(rank for rank in self.ranks if rank != self.registry.membership.rank)

    def missing(self) -> tuple[int, ...]:
        """World ranks that have not called it yet."""
        return tuple(rank for rank in self.ranks if self.needs(rank))

    def waiting_for(self) -> str:
        missing = self.missing()
        if self.running and missing:
            return f"ranks {list(missing)} to exchange their parts"
        return f"ranks {list(missing)} to call it" if missing else "the backend to finish"

    def launched(self) -> Launch:
        """Make the call of the backend, once all agree."""
        if self.plan.launch is None:
            raise LookupError(f"{self.name} goes without the backend")
        launch = self.launch = Launch(self, self.ranks, self.plan.launch, self.complete)
        launch.streamed, launch.ready = self.plan.streamed, not self.copying
        return launch

    def absorb(self, parts: list[memoryview | None]) -> None:
        """Make the result of what all sent. A failure in that is the call's own, not the last peer's; the others have
        our part already, so none is left waiting."""
        try:
            value = self.plan.absorb(parts)
        except (RuntimeError, TypeError) as error:
            super().fail(self.unmade(error))
            return
        self.complete(value)

    def mismatch(self, fingerprints: Sequence[bytes]) -> TensorMismatch:
        """Make the error of members that call different things, as their fingerprints, by group rank, say."""
        us = self.registry.membership
        said = dict(zip(self.ranks, map(describe, fingerprints), strict=True))
        ours = said.pop(us.rank)
        others = "; ".join(f"rank {rank} calls {text}" for rank, text in said.items())
        what, cause, remedy = f"rank {us.rank} calls {ours}; {others}", None, None
        if not same_group(fingerprints):
            what += "; the members call it on groups of different ranks or labels that have the same number"
            cause = "the number of a group is a checksum of its ranks and label, and two groups have the same by chance"
            remedy = "pass another label to group(), the same one on every member; the world is still usable"
        return TensorMismatch(us.name, what, cause=cause, remedy=remedy, ours=ours, theirs=said, **us.where())

    def unmade(self, error: Exception) -> InvalidArgument:
        """All members did their part, but the result cannot be made of it here."""
        us = self.registry.membership
        cause = "torch cannot do this for this dtype or reduction"
        remedy = "convert the tensor, or reduce otherwise; the world goes on"
        what = f"the result cannot be made: {error}"
        return InvalidArgument(us.name, what, cause=cause, remedy=remedy, **us.where(self.name))
