"""The backends that the suite runs on, as a table; a row that cannot run here says why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backend:
    """One row.

    Attributes:
        name: what ``join(backend=)`` gets.
        missing: why it cannot run here; None if it can.
        gpu: whether it needs a real device: its tests have the mark ``gpu``.
    """

    name: str
    missing: Callable[[], str | None]
    gpu: bool = False

    def __str__(self) -> str:
        return self.name


def _no_gpu() -> str | None:
    import torch

    if not torch.cuda.is_available():
        return "nccl: no CUDA device here; nothing about NCCL is shown by this run"
    if torch.cuda.device_count() < 3:
        return "nccl: three CUDA devices are needed, one per member"
    return None


BACKENDS = (
    Backend("gloo", lambda: None),
    Backend("nccl", _no_gpu, gpu=True),
)
