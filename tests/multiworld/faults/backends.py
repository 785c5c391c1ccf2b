"""The backends that the suite runs on, as a table; a row that cannot run here says why.

The simulated rows run torch's real code, and NVIDIA's bindings, on an imitated CUDA and NCCL (``gpuless``): workers are
real processes with a device each, and data moves between them. Kernels do not run there.
"""

from __future__ import annotations

import functools
import importlib.util
import shutil
from dataclasses import dataclass
from enum import Enum

import pytest

#: imitated devices: one for each worker of a test but the largest
DEVICES = 16


class Kind(Enum):
    """Place of the tensors of a row."""

    CPU = "cpu"
    SIMULATED = "simulated"
    GPU = "gpu"


@dataclass(frozen=True, slots=True)
class Backend:
    """One row.

    Attributes:
        backend: what ``join(backend=)`` gets.
        kind: where tensors are.
    """

    backend: str
    kind: Kind

    def __str__(self) -> str:
        return f"{self.backend} (simulated)" if self.kind is Kind.SIMULATED else self.backend

    def device(self, number: int) -> str | None:
        """The device of a scene's ``number``-th worker; None for the backend's own choice."""
        if self.kind is Kind.CPU:
            return None
        import torch  # not above: the conftest imports this module

        return f"cuda:{number % (DEVICES if self.kind is Kind.SIMULATED else torch.cuda.device_count())}"

    def variables(self, number: int) -> dict[str, str]:
        """The environment of a scene's ``number``-th worker: NCCL takes ranks on one device only from several hosts."""
        alone = self.kind is Kind.CPU or (self.kind is Kind.SIMULATED and number < DEVICES)
        return {} if alone else {"NCCL_HOSTID": f"worker-{number}"}

    def missing(self) -> str | None:
        """Why it cannot run here; None if it can."""
        return _missing(self)


@functools.cache
def _missing(row: Backend) -> str | None:
    if row.kind is Kind.CPU:
        return None
    import torch

    if row.backend == "nccl" and importlib.util.find_spec("nccl") is None:
        return f"{row}: nccl4py is not installed; nothing about this driver is shown by this run"
    if row.kind is Kind.GPU:
        return None if torch.cuda.is_available() else f"{row}: no CUDA device here; nothing about it is shown"
    if torch.version.cuda is None:
        return f"{row}: this torch is built without CUDA; nothing about NCCL is shown by this run"
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        return f"{row}: no C compiler to build the imitation of CUDA and NCCL"
    return None


GLOO = Backend("gloo", Kind.CPU)
BACKENDS = (GLOO, *(Backend(name, kind) for kind in (Kind.SIMULATED, Kind.GPU) for name in ("nccl", "torch-nccl")))


def rows(part: str = "", *, gpu: bool = False) -> list[object]:
    """Return the rows that a test runs on here; where there is none, one that is skipped with the reason.

    ``test_rows.py`` says for each row of the table, once, why it cannot run here.

    Args:
        part: a text that the names of the rows have for which the test is meant; empty for all.
        gpu: rows on a device are asked for: where they cannot run, each is skipped with the reason.
    """
    meant = [row for row in BACKENDS if part in str(row)]
    wanted = [row for row in meant if row.missing() is None or (gpu and row.kind is Kind.GPU)]
    return [parameter(row) for row in wanted or meant[:1]]


def parameter(row: Backend) -> object:
    """Return a row as a parameter; one that cannot run here is skipped with the reason."""
    marks = [pytest.mark.gpu] if row.kind is Kind.GPU else []
    reason = row.missing()
    return pytest.param(row, id=str(row), marks=[*marks, pytest.mark.skip(reason=reason)] if reason else marks)
