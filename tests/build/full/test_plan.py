"""The needs of a full build are told before it starts: architectures, memory, disk, programs, time."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from build.commands import build as build_module
from build.commands.build import build as build_command
from build.errors import EnvironmentUnfitError, NeedsFullBuildError, UsageError
from build.full import architectures, torch
from build.full import plan as plans
from build.full.caching import CompilerCache, running
from build.full.compile import libraries
from build.full.project import External, Project, Sources, UnitKind
from build.full.toolchains import Kind
from build.overlay.toolchain import free_memory

GIB = 1 << 30


def project(tree: Path | None = None) -> Project:
    units = (
        UnitKind("host", ("src/*.cpp",), 10, typical=7),
        UnitKind("device", ("src/*.cu",), 5, device=True, typical=3),
    )
    return Project(
        name="torch",
        version="9.9.0+cu124.mw1",
        sources=lambda: Sources(Path("nowhere"), "", ""),
        tree=tree,
        python="3.11",
        targets=architectures.parse("8.0;9.0", "12.4"),
        units=units,
        disk=GIB,
        memory_per_job=1 << 20,
    )


def test_official_lists_are_known_to_their_compilers() -> None:
    for cuda, listed in architectures.OFFICIAL.items():
        assert ";".join(map(str, architectures.parse(listed, cuda))) == listed
    assert architectures.official("13.2") == architectures.OFFICIAL["13.0"]
    assert architectures.official("12.5") == architectures.OFFICIAL["12.4"]


@pytest.mark.parametrize(
    ("text", "cuda", "said"),
    [
        ("8.0;9.9", "12.4", "9.9 is no architecture that this project knows"),
        ("10.0", "12.4", "10.0 (B200) needs CUDA 12.8 or newer"),
        ("7.0", "13.0", "CUDA 13.0 dropped it"),
        ("sm_90", "12.4", "sm_90 is no architecture"),
        (" ; ", "12.4", "no architecture was named"),
    ],
)
def test_an_unknown_architecture_is_refused(text: str, cuda: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"CUDA {cuda} does not compile for ") as caught:
        architectures.parse(text, cuda)
    assert said in caught.value.cause
    assert "9.0 (H100)" in caught.value.remedy


def test_the_command_refuses_it_before_anything_else(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "requirements", lambda *_: pytest.fail("the index was asked first"))
    with pytest.raises(UsageError, match=r"CUDA 12\.4 does not compile for 12\.0"):
        build_command("2.6.0", full=True, arch="8.0;12.0", dist=own_cache)
    assert not own_cache.exists() or list(own_cache.iterdir()) == []


def test_patches_of_a_user_are_refused(own_cache: Path, tmp_path: Path) -> None:
    """They were left out without a word."""
    with pytest.raises(UsageError, match="the project's series: no --patches"):
        build_command("2.6.0", full=True, patches=tmp_path, dist=own_cache)


def test_jobs_follow_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAX_JOBS", raising=False)
    assert plans.jobs(6 * GIB, 64, 100 * GIB) == 16
    assert plans.jobs(6 * GIB, 4, 100 * GIB) == 4
    assert plans.jobs(6 * GIB, 4, 100 * GIB, 12) == 12
    monkeypatch.setenv("MAX_JOBS", "3")
    assert plans.jobs(6 * GIB, 4, 100 * GIB) == 3


def test_too_little_memory_is_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_JOBS", "8")
    with pytest.raises(EnvironmentUnfitError, match=r"too small for 8 jobs") as caught:
        plans.jobs(6 * GIB, 8, 20 * GIB)
    assert "20.0 GiB are available, 48.0 GiB are needed: 6.0 GiB for each compiler" in caught.value.cause
    assert caught.value.remedy == "--jobs 3 fits"
    monkeypatch.delenv("MAX_JOBS")
    with pytest.raises(EnvironmentUnfitError, match=r"too small for 1 job\n") as caught:
        plans.jobs(6 * GIB, 8, 5 * GIB)
    assert "more memory" in caught.value.remedy
    monkeypatch.setenv("MAX_JOBS", "many")
    with pytest.raises(UsageError, match="MAX_JOBS=many"):
        plans.jobs(GIB, 8, 20 * GIB)


def test_this_machine_has_something() -> None:
    assert 0 < free_memory() < 1 << 50


def test_time_is_estimated_from_the_tree(tmp_path: Path, own_cache: Path) -> None:
    (tmp_path / "src").mkdir()
    for name in ("a.cpp", "b.cpp", "c.cu"):
        (tmp_path / "src" / name).touch()
    plan = plans.make(project(tmp_path), Kind.SYSTEM, CompilerCache.NONE, 2)
    assert [(row.units, row.seconds) for row in plan.rows] == [(2, 20), (1, 10)]  # device code: two architectures
    assert (plan.seconds, plan.counted, plan.missing) == (15, True, ())
    unknown = plans.make(project(), Kind.SYSTEM, CompilerCache.NONE, 2)
    assert [row.units for row in unknown.rows] == [7, 3]
    assert not unknown.counted
    assert own_cache.is_dir()


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_all_that_is_missing_is_said_at_once(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(GIB, GIB, 0))
    greedy = replace(project(), memory_per_job=1 << 60, cuda="12.4")
    plan = plans.make(greedy, Kind.INDEX, CompilerCache.NONE, 4)
    plans.show(plan)
    said = capsys.readouterr().out
    assert "full build of torch 9.9.0+cu124.mw1" in said
    assert "8.0 (A100), 9.0 (H100)" in said
    assert said.count("missing: ") == 3
    with pytest.raises(EnvironmentUnfitError, match=r"3 problems") as caught:
        plans.require(plan)
    for problem in ("the memory is too small for 4 jobs", "no nvcc of CUDA 12.4", f"{own_cache} has 0 GiB free"):
        assert problem in caught.value.cause


@pytest.mark.parametrize(("seconds", "said"), [(40, "40 s"), (720, "12 min"), (27000, "7.5 h")])
def test_durations(seconds: float, said: str) -> None:
    assert plans.hours(seconds) == said


def test_a_compiler_cache_that_is_not_there(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert CompilerCache.AUTO.chosen() is CompilerCache.NONE
    assert "ccache is not on PATH" in CompilerCache.CCACHE.problem()
    with running(CompilerCache.NONE) as variables:
        assert variables == {}
    assert not own_cache.exists()


def test_libraries_of_official_wheels_become_requirements() -> None:
    from packaging.requirements import Requirement

    lines = ["filelock", "nvidia-cublas-cu12==12.4.5.8; platform_system == 'Linux'", "nvidia-cusparselt-cu12==0.6.2"]
    lines += ["triton==3.2.0", "nvidia-nccl-cu13==2.30.7", "cuda-toolkit[cublas,cudart]==13.2.2"]
    found = torch.externals(map(Requirement, lines))
    assert [item.requirement for item in found] == [
        'nvidia-cublas-cu12==12.4.5.8; platform_system == "Linux"',
        "nvidia-cusparselt-cu12==0.6.2",
        "nvidia-nccl-cu13==2.30.7",
        "cuda-toolkit[cublas,cudart]==13.2.2",
    ]


def test_libraries_are_those_of_the_installed_distributions(tmp_path: Path) -> None:
    """Those of a distribution that only requires others are theirs; one that is named itself has its own."""
    installed = {
        "cuda_toolkit": (
            "13.2",
            "Requires-Dist: nvidia-cublas; extra == 'cublas'\nRequires-Dist: nvidia-nccl-cu13\n",
            "",
        ),
        "nvidia_cublas": ("13.1", "", "nvidia/cu13/lib/libcublas.so.13,,\nnvidia/cu13/include/cublas.h,,\n"),
        "nvidia_nccl_cu13": ("2.30.7", "", "nvidia/nccl/lib/libnccl.so.2,,\n"),
        "numpy": ("2.0", "", "numpy/core.so,,\n"),
    }
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    for name, (version, needs, files) in installed.items():
        (folder := site / f"{name}-{version}.dist-info").mkdir(parents=True)
        text = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n{needs}"
        (folder / "METADATA").write_text(text)
        (folder / "RECORD").write_text(files)
    wanted = (External("cuda-toolkit[cublas]", "13.2"), External("nvidia-nccl-cu13", "2.30.7"))
    project = Project("x", "1", lambda: Sources(tmp_path, "", ""), "3.11", externals=wanted)
    found = {str(file): owner.distribution for file, owner in libraries(project, tmp_path / "bin" / "python").items()}
    assert found == {
        "nvidia/cu13/lib/libcublas.so.13": "cuda-toolkit[cublas]",
        "nvidia/nccl/lib/libnccl.so.2": "nvidia-nccl-cu13",
    }


@pytest.mark.parametrize("terminal", [True, False])
def test_where_an_overlay_is_refused_a_person_is_asked(
    terminal: bool, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: object) -> None:
        raise NeedsFullBuildError("the header is seen by others")

    asked: list[str] = []

    def agree(text: str) -> bool:
        asked.append(text)
        return True

    monkeypatch.setattr(build_module, "build_release", refused)
    monkeypatch.setattr("sys.stdin.isatty", lambda: terminal)
    monkeypatch.setattr("typer.confirm", agree)
    # The full build begins with the architectures: the one named here ends it.
    with pytest.raises(UsageError if terminal else NeedsFullBuildError):
        build_command("2.6.0", arch="1.0", dist=own_cache)
    assert len(asked) == terminal
