"""Settings for example programs: Gloo, the imitation of NCCL on either driver, or a real device."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.multiworld.faults.programs import own_loopback

SIMULATED = " (simulated)"
SETTINGS = ("gloo", f"nccl{SIMULATED}", f"torch-nccl{SIMULATED}", pytest.param("nccl", marks=pytest.mark.gpu))
_DEVICES = 3
_IS_PATCHED = """
import importlib.util, runpy, sys
from pathlib import Path
torch = Path(importlib.util.find_spec("torch").origin).parent
patched = ".mw" in runpy.run_path(str(torch / "version.py"))["__version__"]
sys.exit(not patched and importlib.util.find_spec("multiworld_torch_overlay") is None)
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """One of them.

    Attributes:
        backend: for ``--backend``.
        python: the interpreter of the programs.
        environment: variables of the programs.
        address: for ``--addr``; no other test uses it.
        apart: whether the programs share a device, for which NCCL has to take them for hosts apart.
    """

    backend: str
    python: Path
    environment: Mapping[str, str]
    address: str
    apart: bool = False

    @classmethod
    def of(cls, name: str, folder: Path) -> Setting:
        """Make a setting; the test is skipped with the reason where it cannot be made."""
        if name.endswith(SIMULATED):
            return cls(name.removesuffix(SIMULATED), *_simulated(name, folder), own_loopback())
        if name == "nccl":
            _need_device()
        return cls(name, Path(sys.executable), {}, own_loopback(), apart=name == "nccl")

    def applied(self, command: list[str]) -> list[str]:
        """A documented command for Gloo, on this setting."""
        exchange = {"gloo": self.backend, "127.0.0.1": self.address}
        return [exchange.get(word, word) for word in command]

    @property
    def is_patched(self) -> bool:
        """Return whether the torch of the programs is a patched wheel or has an overlay."""
        return subprocess.run([self.python, "-c", _IS_PATCHED], check=False, timeout=60).returncode == 0

    @property
    def waits_at_a_deadline(self) -> bool:
        """Return whether ``wait()`` with a deadline waits for NCCL; before 2.6 it is only the stream."""
        version = subprocess.check_output(
            [self.python, "-c", "from importlib import metadata; print(metadata.version('torch'))"],
            text=True,
            timeout=60,
        )
        return tuple(map(int, version.split(".")[:2])) >= (2, 6)


def _simulated(name: str, folder: Path) -> tuple[Path, dict[str, str]]:
    ranks = pytest.importorskip("tests.multiworld.device.ranks", reason=f"{name}: the harness needs the tooling")
    if (reason := ranks.without_imitation()) is not None:
        pytest.skip(f"{name}: {reason}")
    if not name.startswith("torch-") and not ranks.has_bindings():
        pytest.skip(f"{name}: nccl4py is not installed beside that torch")
    control = folder / "control"
    control.mkdir()
    return ranks.torch_python(), ranks.environment(ranks.torch_python(), control, devices=_DEVICES, network=True)


def _need_device() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("nccl: no CUDA device here; nothing about NCCL is shown by this run")
