"""Print the facts that a result on a device depends on, as JSON on stdout; runs in the Python that has torch."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
from datetime import datetime, timezone
from importlib import import_module, metadata
from types import ModuleType
from typing import Any

#: Distributions whose versions matter to a world on NCCL; NVIDIA's names end with the CUDA version that they are for.
_PACKAGES = ("torch", "nccl4py", "cuda-bindings", "cuda-core", "numpy", "pytest", "torch-multiworld")
_PREFIXES = ("nvidia-nccl", "nvidia-cuda-runtime", "multiworld-torch-overlay")
_VARIABLES = ("NCCL_", "TORCH_NCCL_", "CUDA_", "MULTIWORLD_", "NVIDIA_")
_QUERY = "name,driver_version,memory.total,compute_cap,mig.mode.current"
_SECONDS = 30.0


def collect() -> dict[str, Any]:
    """Return the facts; `devices` is empty where torch sees none, and `no_device` then says why."""
    import torch

    there, why = _devices(torch)
    found = {(item.metadata["Name"] or "").lower().replace("_", "-"): item.version for item in metadata.distributions()}
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "torch_commit": torch.version.git_version,
        "cuda": torch.version.cuda,
        "nccl": _nccl(torch),
        "overlay": _overlay(),
        "devices": there,
        "no_device": why,
        "nvidia_smi": _nvidia_smi(),
        "packages": {name: found[name] for name in sorted(found) if name in _PACKAGES or name.startswith(_PREFIXES)},
        "variables": {name: value for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLES)},
    }


def _devices(torch: ModuleType) -> tuple[list[dict[str, object]], str]:
    if torch.version.cuda is None:
        return [], f"torch {torch.__version__} is a build without CUDA"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return [], str(error).strip().partition("\n")[0]
    found = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    rows = [(item.name, item.total_memory >> 20, f"{item.major}.{item.minor}") for item in found]
    return [{"name": name, "memory_MiB": memory, "capability": level} for name, memory, level in rows], ""


def _nccl(torch: ModuleType) -> str | None:
    with contextlib.suppress(Exception):  # a build without NCCL, in words that differ between releases
        return ".".join(map(str, torch.cuda.nccl.version()))
    return None


def _overlay() -> str | None:
    try:
        return str(import_module("multiworld_torch_overlay").state())
    except ModuleNotFoundError:
        return None


def _nvidia_smi() -> list[str]:
    """Return a line per device of nvidia-smi's table; empty where there is no nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        return (done.stdout if done.returncode == 0 else done.stdout + done.stderr).splitlines()
    return []


if __name__ == "__main__":
    sys.stdout.write(json.dumps(collect(), indent=2) + "\n")
