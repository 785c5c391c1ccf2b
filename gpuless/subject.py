"""The probed interpreter: its torch, and the paths of its libraries and CUDA headers."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from build.errors import EnvironmentUnfitError
from build.process import run

# Runs in the probed interpreter; reads torch/version.py alone, since importing torch takes seconds.
_ASK = """
import importlib.util, json, pathlib, runpy
torch = importlib.util.find_spec("torch")
nvidia = importlib.util.find_spec("nvidia")
root = pathlib.Path(torch.origin).parent if torch and torch.origin else None
version = runpy.run_path(str(root / "version.py")) if root else {}
print(json.dumps({
    "root": str(root) if root else "",
    "version": str(version.get("__version__", "")),
    "cuda": version.get("cuda") or "",
    "nvidia": [str(p) for p in (nvidia.submodule_search_locations if nvidia else [])],
}))
"""


@dataclass(frozen=True, slots=True)
class Subject:
    """An interpreter whose torch is probed.

    Args:
        python: the interpreter.
        version: torch's full version, e.g. "2.6.0+cu124".
        torch: the installed package's folder.
        cuda_headers: the folder of `cuda_runtime_api.h`.
        cudart: the CUDA runtime that torch is linked against.
        nccl: the NCCL library.
        nccl_version: its version as NCCL counts, e.g. 22105.
    """

    python: Path
    version: str
    torch: Path
    cuda_headers: Path
    cudart: Path
    nccl: Path
    nccl_version: int

    @property
    def release(self) -> str:
        return self.version.partition("+")[0]

    @property
    def torch_libraries(self) -> tuple[Path, ...]:
        """The CUDA libraries of torch, whose symbols the imitation has to provide."""
        lib = self.torch / "lib"
        return tuple(lib / name for name in ("libc10_cuda.so", "libtorch_cuda.so"))


def examine(python: Path) -> Subject:
    """Examine the torch of an interpreter, without importing it.

    Args:
        python: an interpreter with an official CUDA build of torch and its nvidia packages.

    Raises:
        EnvironmentUnfitError: no torch, a build without CUDA, or parts of the nvidia packages missing.
    """
    facts = _ask(python)
    if not facts["root"]:
        remedy = "give the interpreter of an environment with a CUDA build of torch (--python)"
        raise EnvironmentUnfitError(f"{python} has no torch", remedy=remedy)
    if not facts["cuda"]:
        what = f"torch {facts['version']} of {python} is a build without CUDA: it has no ProcessGroupNCCL"
        raise EnvironmentUnfitError(what, remedy="install the CUDA build of that release")
    roots = [Path(p) for p in facts["nvidia"]]
    headers = _one(roots, "*/include/cuda_runtime_api.h").parent
    nccl_header = _one(roots, "nccl/include/nccl.h")
    text = nccl_header.read_text(encoding="utf-8", errors="replace")
    found = dict(re.findall(r"#define NCCL_(MAJOR|MINOR|PATCH)\s+(\d+)", text))
    major, minor, patch = (int(found.get(name, 0)) for name in ("MAJOR", "MINOR", "PATCH"))
    return Subject(
        python=python,
        version=facts["version"],
        torch=Path(facts["root"]),
        cuda_headers=headers,
        cudart=_one(roots, "*/lib/libcudart.so.*"),
        nccl=_one(roots, "nccl/lib/libnccl.so.2"),
        nccl_version=major * 10000 + minor * 100 + patch,  # NCCL_VERSION, from 2.9 on
    )


def _ask(python: Path) -> dict[str, str]:
    done = run([python, "-I", "-c", _ASK], timeout=60)
    if done.returncode:
        what, remedy = f"{python} cannot be asked for its torch", "give the path of a working Python"
        raise EnvironmentUnfitError(what, cause=done.tail, remedy=remedy)
    answer: dict[str, str] = json.loads(done.stdout)
    return answer


def _one(roots: list[Path], pattern: str) -> Path:
    for root in roots:
        for found in sorted(root.glob(pattern)):
            return found
    what = f"no {pattern} below {', '.join(map(str, roots)) or 'any nvidia package'}"
    raise EnvironmentUnfitError(what, remedy="install torch with its dependencies")
