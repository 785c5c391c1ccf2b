"""Device code through the whole way, on a machine without a GPU: nvcc, NVIDIA's runtime as a requirement."""

from __future__ import annotations

import platform
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from build.errors import EnvironmentUnfitError
from build.full import architectures, engine, toolchains
from build.full import plan as plans
from build.full.caching import CompilerCache
from build.full.project import External, Probe, Project, Sources
from build.full.toolchains import Kind
from build.overlay.symbols import needed, run_path
from build.preflight import lacking
from build.process import run
from tests.build.full import standin
from tests.build.series.repos import make_repo

CUDA = "13.0"
PYTHON = ".".join(platform.python_version_tuple()[:2])
_KERNEL = """
__global__ void scale(float* data, float factor, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] *= factor;
}
extern "C" int tiny_devices() {
  int found = 0;
  return cudaGetDeviceCount(&found) == cudaSuccess ? found : 0;
}
extern "C" void tiny_scale(float* data, float factor, int count) {
  scale<<<(count + 255) / 256, 256>>>(data, factor, count);
}
"""
_CMAKE = """
cmake_minimum_required(VERSION 3.20)
project(tinytorch LANGUAGES CXX CUDA)
add_library(tiny SHARED src/kernel.cu)
set_target_properties(tiny PROPERTIES CUDA_RUNTIME_LIBRARY Shared)
install(TARGETS tiny DESTINATION ${CMAKE_SOURCE_DIR}/tinytorch/lib)
"""
_INIT = """import ctypes, pathlib
library = ctypes.CDLL(str(pathlib.Path(__file__).with_name("lib") / "libtiny.so"))
"""
_PROBE = "import tinytorch; assert tinytorch.library.tiny_devices() >= 0"


def project(folder: Path) -> Project:
    files = standin.FILES | {"src/kernel.cu": _KERNEL.encode(), "CMakeLists.txt": _CMAKE.encode()}
    files |= {"tinytorch/__init__.py": _INIT.encode()}
    git = make_repo(folder / "repo", files)
    return Project(
        name=standin.NAME,
        version="1.0+cu130",
        sources=lambda: Sources(folder / "repo", git.line("rev-parse", "HEAD"), "a repository of the test"),
        python=PYTHON,
        cuda=CUDA,
        targets=architectures.parse("8.0;9.0+PTX", CUDA),
        externals=(External("nvidia-cuda-runtime", "13.0.96"),),
        environment={"TINY_BUILD_VERSION": "1.0+cu130"},
        disk=1 << 20,
        memory_per_job=1 << 20,
        probes=(Probe("it loads with NVIDIA's runtime", ("{python}", "-c", _PROBE)),),
    )


def build(folder: Path, kind: Kind) -> Path:
    plan = plans.make(project(folder), kind, CompilerCache.NONE, 2)
    return folder / "dist" / engine.build(plan, folder / "dist").wheel.name


def check(wheel: Path, tools: toolchains.Toolchain, folder: Path) -> None:
    """Look into the wheel: code for both architectures, the portable form of one, and no CUDA library in it."""
    tree = standin.unpacked(wheel, folder / "unpacked")
    library = tree / "tinytorch" / "lib" / "libtiny.so"
    assert needed(library)[0] == "libcudart.so.13"
    assert run_path(library).split(":")[0] == "$ORIGIN/../../nvidia/cu13/lib"
    assert not list(tree.rglob("libcudart*"))
    assert "Requires-Dist: nvidia-cuda-runtime==13.0.96\n" in next(tree.glob("*.dist-info/METADATA")).read_text()
    data = library.read_bytes()
    assert b"sm_80" in data
    assert b"sm_90" in data
    assert tools.cuda_home is not None


@pytest.mark.slow
def test_with_the_toolkit_of_this_machine(tmp_path: Path, own_cache: Path) -> None:
    assert own_cache
    for problem in lacking(partial(toolchains.check, Kind.SYSTEM, CUDA, 9)):
        pytest.skip(f"needs the CUDA {CUDA} toolkit: {problem}")
    check(build(tmp_path, Kind.SYSTEM), toolchains.find(Kind.SYSTEM, CUDA, 9), tmp_path)


def test_the_table_of_architectures_is_the_compilers(tmp_path: Path) -> None:
    for problem in lacking(partial(toolchains.check, Kind.SYSTEM, CUDA, 9)):
        pytest.skip(f"needs the CUDA {CUDA} toolkit: {problem}")
    tools = toolchains.find(Kind.SYSTEM, CUDA, 9)
    assert tools.cuda_home is not None
    said = run([tools.cuda_home / "bin" / "nvcc", "--list-gpu-arch"]).stdout.decode().split()
    ours = [item.capability.replace(".", "") for item in architectures.TABLE if item.known_to(CUDA)]
    assert set(said) == {f"compute_{number}" for number in ours if number.isdecimal()}
    assert tmp_path.is_dir()


def test_a_toolkit_of_another_version_is_refused_before_anything_is_done(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvcc = tmp_path / "cuda" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.1, V12.1.105'\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(nvcc.parent.parent))
    plan = plans.make(project(tmp_path), Kind.SYSTEM, CompilerCache.NONE, 2)
    (said,) = plan.missing
    assert f"the CUDA toolkit in {tmp_path / 'cuda'} is 12.1, 13.0 is needed" in said
    assert "`--toolchain index`, which needs nothing installed" in said
    assert list(own_cache.iterdir()) == []


def test_no_toolkit_and_no_conda(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("git", "g++", "gcc", "cc", "nm", "objcopy", "c++filt", "ld", "ar", "readelf"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in ("CUDA_HOME", "CUDA_PATH", "CUDACXX", "CONDA_EXE", "MAMBA_EXE", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    old = replace(project(tmp_path), cuda="12.4")
    ways = {Kind.SYSTEM: "CUDA", Kind.CONDA: "no conda, mamba or micromamba", Kind.INDEX: "has no nvcc of CUDA 12.4"}
    for kind, said in ways.items():
        (problem,) = plans.make(old, kind, CompilerCache.NONE, 2).missing
        assert said in problem
    assert own_cache.is_dir()


def test_packages_are_completed_to_a_toolkit(tmp_path: Path) -> None:
    """Files that CMake's FindCUDAToolkit and linkers look for, and NVIDIA's packages lack."""
    library = tmp_path / "lib" / "libcudart.so.13"
    library.parent.mkdir()
    library.write_bytes(b"a library")
    toolchains.complete(tmp_path)
    toolchains.complete(tmp_path)
    assert (tmp_path / "lib64" / "libcudart.so").read_bytes() == b"a library"


def test_a_compiler_that_is_not_locked_is_refused() -> None:
    for cuda in toolchains.TOOLKITS:
        toolchains.check_index(cuda)
    with pytest.raises(EnvironmentUnfitError, match=r"no lock for the compiler of CUDA 13\.99") as caught:
        toolchains.check_index("13.99")
    assert "nox -s lock" in caught.value.remedy
