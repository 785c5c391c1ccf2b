"""PyTorch as a project of a full build: its facts from `build/releases.toml`, variables as upstream's CI sets them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from build import official, releases
from build.errors import UsageError
from build.full import architectures
from build.full.project import External, Probe, Project, Sources, UnitKind
from build.git import repository, split_revision
from build.official.facts import exact, requirements
from build.official.wheel import cached_wheel
from build.paths import REPO
from build.releases import Release
from build.series.manifest import patches_of
from build.sources import TreePurpose, acquire
from build.sources.acquire import cached_folder
from build.sources.local import check_blobs

_GIB = 1 << 30
#: Bytes that nvcc takes at its peak, for the attention kernels; host units take less than 2 GB, measured.
MEMORY_PER_JOB = 6 * _GIB
#: Bytes: the clone with its submodules, the objects, the wheel; rounded up.
DISK = 60 * _GIB
#: Counts are those of the files of 2.6.0; those of generated files are what CMake makes for the CPU. Seconds of one
#: core, measured on 2.6.0 with g++ 12: `c10` whole, 89 steps in 108 s; ATen, two units, 5 and 9 s; torch/csrc, four
#: units, 7 to 31 s; device code with nvcc 13.0, ActivationGeluKernel.cu, 25 s for one architecture, 41 s for two.
#: Not measured, so an estimate: third_party, and the generated device code.
UNITS = (
    UnitKind("c10", ("c10/**/*.cpp",), 1.2, typical=104),
    # Three times where kernels have AVX2 and AVX512 forms.
    UnitKind("ATen", ("aten/src/**/*.cpp",), 7, typical=880, generated=232),
    UnitKind("torch/csrc and caffe2", ("torch/csrc/**/*.cpp", "caffe2/**/*.cc"), 15, typical=740),
    UnitKind("third_party", ("third_party/*/src/**/*.c*",), 2, typical=3000),
    UnitKind("device code", ("aten/src/**/*.cu", "torch/csrc/**/*.cu"), 15, device=True, typical=490, generated=150),
)


def externals(needs: Iterable[Requirement]) -> tuple[External, ...]:
    """Return the distributions with libraries among the requirements of an official wheel."""
    found = []
    for need in (need for need in needs if exact(need)):
        if need.name == "cuda-toolkit" or need.name.startswith("nvidia-"):
            extras = f"[{','.join(sorted(need.extras))}]" if need.extras else ""  # cuda-toolkit's, from torch 2.11 on
            found.append(External(f"{need.name}{extras}", exact(need), str(need.marker or "")))
    return tuple(found)


def _environment(release: Release, needs: Iterable[Requirement]) -> dict[str, str]:
    """Return upstream's variables: `.ci/manywheel/build_cuda.sh` and `build_common.sh`."""
    linux = [str(need) for need in needs if need.marker is not None and "platform_system" in str(need.marker)]
    return {
        "PYTORCH_BUILD_VERSION": release.patched_version,
        "PYTORCH_BUILD_NUMBER": "1",
        "PYTORCH_EXTRA_INSTALL_REQUIREMENTS": " | ".join(linux),
        "TH_BINARY_BUILD": "1",
        "BUILD_TEST": "0",
        "INSTALL_TEST": "0",
        "USE_CUDA": "1",
        "USE_STATIC_CUDNN": "0",
        "USE_STATIC_NCCL": "0",
        "USE_SYSTEM_NCCL": "1",
        "ATEN_STATIC_CUDA": "0",
        "USE_CUDA_STATIC_LINK": "0",
        "USE_CUPTI_SO": "1",
        "TORCH_NVCC_FLAGS": "-Xfatbin -compress-all --threads 2",
        "_GLIBCXX_USE_CXX11_ABI": str(int(release.wheel.cxx11_abi)),
    }


def _sources(release: Release, source: Path | None) -> Sources:
    """Return the recursive checkout: upstream's, or the user's own with its submodules."""
    if source is None:
        tree = acquire(release, need=TreePurpose.FULL)
        return Sources(tree.repo, tree.base, f"{tree.kind.value}: {tree.identity}; {tree.proof.value}")
    path, revision = split_revision(str(source))
    git = repository(path) if path.is_dir() else None
    if git is None:
        what = f"--source {source}: a full build needs a git checkout with its submodules"
        raise UsageError(what, remedy=f"git clone --recursive --branch {release.tag} …, and name that folder")
    base = git.resolve(revision or "HEAD")
    if base != release.commit:
        check_blobs(release, git.folder, str(source))
    return Sources(git.folder, base, f"local git repository: commit {base}")


def project(version: str, python: str, *, targets: str = "", source: Path | None = None) -> Project:
    """Return PyTorch `version` as a project.

    Args:
        python: CPython version, e.g. `3.11`.
        targets: architectures, e.g. `8.0;9.0+PTX`; default those of the official wheel.
        source: a checkout with its submodules; default upstream's.

    Raises:
        UsageError: an architecture is not known, or the release's CUDA version does not compile for it.
        PatchError: the release has no series.
        EnvironmentUnfitError: the requirements of the official wheel cannot be read: no network.
    """
    release = releases.get(version)
    cuda = release.wheel.cuda
    chosen = architectures.parse(targets or architectures.official(cuda), cuda)
    patches = patches_of(release.version, release.series)
    needs = requirements(version, python, cached_wheel(release, python))
    harness = ("env", f"PYTHONPATH={REPO}", sys.executable, "-m", "gpuless", "--python", "{python}", "--expect")
    return Project(
        name="torch",
        version=release.patched_version,
        sources=lambda: _sources(release, source),
        # To count units in; one for overlays lacks third_party, which the typical numbers then stand for.
        tree=source if source is not None and source.is_dir() else cached_folder(release, TreePurpose.FULL),
        patches=patches,
        python=python,
        cuda=cuda,
        targets=chosen,
        requires=_requires(release),
        externals=externals(needs),
        environment=_environment(release, needs),
        units=UNITS,
        disk=DISK,
        memory_per_job=MEMORY_PER_JOB,
        min_gcc=release.min_gcc,
        probes=(Probe("gpuless", (*harness, "patched"), (*harness, "stock"), stock_fails=False),),
        stock=lambda: official.fetch_wheel(release, python),
    )


def _requires(release: Release) -> tuple[str, ...]:
    """Return the build requirements of the release's pyproject.toml, with caps where newer ones do not build it."""
    numpy = "numpy<2" if Version(release.version) < Version("2.3") else "numpy"
    # CMake 4 refuses `cmake_minimum_required` below 3.5, which third_party of releases before 2.8 has.
    cmake = "cmake>=3.27,<4"
    return ("setuptools<81", "wheel", "astunparse", numpy, "ninja", "pyyaml", cmake, "typing-extensions", "requests")
