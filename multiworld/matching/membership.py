"""Our membership in one generation of one world: what errors name, and what bounds every operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch


@dataclass(frozen=True, slots=True)
class Membership:
    """One membership of one world in one generation.

    Attributes:
        rank: ours.
        generation: from 1.
        backend: ``"gloo"``, ``"nccl"`` or ``"torch-nccl"``.
        op_timeout: seconds an operation may take unless it says otherwise.
        max_message_bytes: the longest message whose length the sender decides.
    """

    name: str
    rank: int
    size: int
    generation: int
    backend: str
    op_timeout: float
    max_message_bytes: int

    @property
    def on_device(self) -> bool:
        """True if the backend takes tensors on a CUDA device, where they are."""
        return self.backend != "gloo"

    def where(self, operation: str | None = None) -> dict[str, Any]:
        """The fields with which an error says where it happened, except the world's name."""
        return {"generation": self.generation, "rank": self.rank, "operation": operation}


class WorldFacts(Protocol):
    """The world of a group, as checks of arguments see it."""

    @property
    def name(self) -> str: ...
    @property
    def world_rank(self) -> int: ...
    @property
    def generation(self) -> int: ...
    @property
    def torch_device(self) -> torch.device: ...
    @property
    def on_device(self) -> bool: ...


class GroupMembers:
    """Members of a world, by rank.

    Attributes:
        member: this process in the world.
        ranks: world ranks of the members; a rank in this group is a place in this tuple.
        gid: number that tells the messages of this group from those of others; 0 is the whole world.
        digest: of what the number is made of, which members compare: two groups may have one number by chance.
    """

    member: WorldFacts
    ranks: tuple[int, ...]
    gid: int
    digest: int

    @property
    def rank(self) -> int:
        """Our rank in this group."""
        return self.ranks.index(self.member.world_rank)

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.ranks)

    @property
    def device(self) -> torch.device:
        """The device that the world was joined with."""
        return self.member.torch_device
