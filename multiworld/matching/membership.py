"""Who we are in one generation of one world: what errors name, and what bounds every operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of every operation of a world.

    Attributes:
        op_timeout: seconds an operation may take unless it says otherwise.
        max_message_bytes: the longest message whose length the sender decides.
    """

    op_timeout: float
    max_message_bytes: int


@dataclass(frozen=True, slots=True)
class Membership:
    """One membership of one world in one generation.

    Attributes:
        rank: ours.
        generation: from 1.
        backend: ``"gloo"``, ``"nccl"`` or ``"torch-nccl"``.
        limits: of its operations.
    """

    name: str
    rank: int
    size: int
    generation: int
    backend: str
    limits: Limits

    @property
    def on_device(self) -> bool:
        """Whether the backend takes tensors on a CUDA device, where they are."""
        return self.backend != "gloo"

    def where(self, operation: str | None = None) -> dict[str, Any]:
        """The fields with which an error says where it happened, except the world's name."""
        return {"generation": self.generation, "rank": self.rank, "operation": operation}
