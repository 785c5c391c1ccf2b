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
        label: for the test's name.
    """

    name: str
    missing: Callable[[], str | None]
    label: str

    def __str__(self) -> str:
        return self.label


def _no_gpu() -> str | None:
    import torch

    if not torch.cuda.is_available():
        return "nccl: no CUDA device here; nothing about NCCL is shown by this run"
    if torch.cuda.device_count() < 3:
        return "nccl: three CUDA devices are needed, one per member"
    return None


def _no_simulation() -> str | None:
    return "nccl (simulated): the imitation of CUDA and NCCL in tests/gpuless is not joined to this suite yet"


BACKENDS = (
    Backend("gloo", lambda: None, "gloo"),
    Backend("nccl", _no_gpu, "nccl"),
    Backend("nccl", _no_simulation, "nccl-simulated"),
)
