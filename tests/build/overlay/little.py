"""Compile the PyTorch in miniature of `little_sources`, and hand it to the code under test as it gets the real one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from build.anypatch.plan import Change, Limits
from build.anypatch.plan import make as make_plan
from build.overlay import toolchain
from build.overlay.closure import compiling
from build.overlay.flags import COMMON
from build.overlay.model import Inputs, Object
from build.releases import OfficialWheel, Release, Unit
from build.runtime.multiworld_torch_overlay._load import build_id
from tests.build.overlay import little_sources as text

PYTHON = ".".join(map(str, sys.version_info[:2]))
VERSION = "9.9.0"
NCCL_CPP = "torch/csrc/cuda/nccl.cpp"
HIDDEN_CPP = "torch/csrc/cuda/Secret.cpp"
RECORDER_CPP = "torch/csrc/distributed/c10d/Recorder.cpp"
USER_CPP = "torch/csrc/cuda/User.cpp"
NCCL_H = "torch/csrc/cuda/nccl.h"
_FLAGS = ["g++", "-std=c++17", *COMMON, "-D_GLIBCXX_USE_CXX11_ABI=1"]


@dataclass(frozen=True, slots=True)
class Little:
    """The miniature.

    Attributes:
        tree: its sources.
        wheel: its wheel, unpacked.
        release: its facts.
        runtime: a part of the cache that all tests may share: it depends on this machine and on stock's libraries.
    """

    tree: Path
    wheel: Path
    release: Release
    runtime: Path


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")


def shell(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def _library(name: str, tree: Path, units: Mapping[str, str], lib: Path, *link: str | Path) -> None:
    """Compile and link one library the way the release does."""
    sources = [tree / unit for unit in units]
    options = ["-shared", f"-Wl,-soname,{name}", "-Wl,--build-id=sha1", "-Wl,--disable-new-dtags", "-Wl,-z,defs"]
    rpath = "-Wl,-rpath,$ORIGIN/../../nvidia/lib:$ORIGIN"
    shell(*_FLAGS, f"-I{tree}", *options, rpath, *sources, *link, "-o", lib / name)


def _nvidia(folder: Path, scratch: Path) -> tuple[Path, Path]:
    """Make the two libraries of other wheels, one with symbol versions."""
    write(scratch, {"nccl.c": text.NCCL, "cudart.c": text.CUDART, "cudart.map": text.CUDART_MAP})
    folder.mkdir(parents=True)
    nccl, cudart = folder / "libnccl.so.2", folder / "libcudart.so.12"
    common = ["gcc", "-shared", "-fPIC"]
    shell(*common, "-Wl,-soname,libnccl.so.2", scratch / "nccl.c", "-o", nccl)
    script = f"-Wl,--version-script={scratch / 'cudart.map'}"
    shell(*common, "-Wl,-soname,libcudart.so.12", script, scratch / "cudart.c", "-o", cudart)
    return nccl, cudart


def make(folder: Path) -> Little:
    """Compile everything below `folder`."""
    tree, wheel = folder / "tree", folder / "wheel"
    units = (text.CUDA, text.CPU, text.C10, text.C10_CUDA, text.PYTHON)
    for files in (text.HEADERS, text.LISTS, *units):
        write(tree, files)
    write(wheel / "torch" / "include", text.HEADERS)
    lib = wheel / "torch" / "lib"
    lib.mkdir(parents=True)
    nccl, cudart = _nvidia(wheel / "nvidia" / "lib", folder / "scratch")
    _library("libc10.so", tree, text.C10, lib)
    _library("libc10_cuda.so", tree, text.C10_CUDA, lib, cudart)
    _library("libtorch_cpu.so", tree, text.CPU, lib, "-fopenmp")
    _library("libtorch_cuda.so", tree, text.CUDA, lib, lib / "libtorch_cpu.so", nccl, cudart)
    _library("libtorch_python.so", tree, text.PYTHON, lib, lib / "libtorch_cuda.so", lib / "libtorch_cpu.so")
    _extension(folder / "scratch", wheel)
    write(
        wheel / "torch", {"__init__.py": text.INIT, "version.py": f"__version__ = '{VERSION}+cu124'\ncuda = '12.4'\n"}
    )
    (runtime := folder / "runtime").mkdir()
    return Little(tree, wheel, _release(build_id(lib / "libtorch_cuda.so")), runtime)


def _extension(scratch: Path, wheel: Path) -> None:
    write(scratch, {"extension.c": text.EXTENSION})
    target = wheel / "torch" / f"_C.cpython-{PYTHON.replace('.', '')}-x86_64-linux-gnu.so"
    python = wheel / "torch" / "lib" / "libtorch_python.so"
    options = ["-shared", "-fPIC", "-Wl,-rpath,$ORIGIN/lib", f"-Wl,-rpath-link,{python.parent}", "-Wl,--no-as-needed"]
    shell("gcc", *options, scratch / "extension.c", python, "-o", target)


def _release(identity: str) -> Release:
    wheel = OfficialWheel(
        version=VERSION,
        local="cu124",
        pythons=(PYTHON,),
        cxx11_abi=True,
        nccl="2.0",
        cuda="12.4",
        libtorch_cuda_build_ids={PYTHON: identity},
        sha256={PYTHON: "0" * 64},
    )
    return Release(version=VERSION, tag=f"v{VERSION}", commit="a" * 40, wheel=wheel, series=("little",))


def inputs(
    little: Little, folder: Path, edits: Mapping[str, str], *, safe: dict[str, str] | None = None, extra: str = ""
) -> Inputs:
    """Copy the tree to `folder`, apply `edits` (path to new content), and describe the build of that."""
    shutil.copytree(little.tree, folder)
    write(folder, edits)
    units = (Unit(path=extra, reason="the test says so"),) if extra else ()
    release = msgspec.structs.replace(little.release, extra_units=units)
    plan = make_plan(folder, Change(frozenset(edits), by="series"), Limits(safe=safe or {}))
    before = {path: (little.tree / path).read_text() for path in edits if (little.tree / path).is_file()}
    return Inputs(
        release=release,
        tree=folder,
        changed=tuple(edits),
        wheel=little.wheel,
        python=PYTHON,
        wheel_sha256="0" * 64,
        headers=(),
        toolchain=toolchain.find(9),
        units=plan.units,
        owners=plan.owners,
        originals=before,
        safe_headers=safe or {},
    )


def edited(path: str, old: str, new: str) -> dict[str, str]:
    """Return the edit of one file of the miniature."""
    every = {**text.HEADERS, **text.CUDA, **text.CPU, **text.PYTHON}
    assert old in every[path]
    return {path: every[path].replace(old, new)}


def with_release(given: Inputs, **changes: object) -> Inputs:
    """Return `given` with another entry of the release."""
    return replace(given, release=msgspec.structs.replace(given.release, **changes))


def relink_cpu(little: Little, tree: Path, wheel: Path) -> Little:
    """Return the miniature with a libtorch_cpu.so made from `tree`, in a wheel folder of its own."""
    shutil.copytree(little.wheel, wheel)
    lib = wheel / "torch" / "lib"
    (lib / "libtorch_cpu.so").unlink()
    _library("libtorch_cpu.so", tree, text.CPU, lib, "-fopenmp")
    return replace(little, tree=tree, wheel=wheel)


def relink_cuda(little: Little, tree: Path, wheel: Path) -> Little:
    """Return the miniature with a libtorch_cuda.so made from `tree`, in a wheel folder of its own."""
    shutil.copytree(little.wheel, wheel)
    lib, nvidia = wheel / "torch" / "lib", wheel / "nvidia" / "lib"
    (lib / "libtorch_cuda.so").unlink()
    link = (lib / "libtorch_cpu.so", nvidia / "libnccl.so.2", nvidia / "libcudart.so.12")
    _library("libtorch_cuda.so", tree, text.CUDA, lib, *link)
    return replace(little, tree=tree, wheel=wheel, release=_release(build_id(lib / "libtorch_cuda.so")))


def compiled(given: Inputs, *units: str) -> tuple[Object, ...]:
    """Compile some units and nothing else."""
    with compiling(given) as pool:
        return pool.compile(dict.fromkeys(units, "test"))
