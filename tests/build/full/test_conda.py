"""The conda environment: locked from a channel on disk, checked without a solver, installed, used as a toolchain."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from build import clearing, conda, lockfile
from build.commands import lock as command
from build.errors import EnvironmentUnfitError, ReleaseDataError, UsageError
from build.full import toolchains
from build.full.toolchains import Kind
from tests.build.full.conda_channel import Channel, driver
from tests.once import once

VERSIONS: tuple[str, ...] = ("12.1", "12.4")
NVCC = "#!/bin/sh\necho 'Cuda compilation tools, release {0}, V{0}.1'\n"
SPECIFICATION = "channels:\n  - {url}\ndependencies:\n  - cuda-nvcc\n  - cxx-compiler  # a comment\n  - picky\n"


@dataclass(frozen=True)
class Made:
    """What takes long, made once for all processes of a run.

    Attributes:
        cache: of the tooling; the environment of conda-lock is in it.
        channel: where the packages are.
        program: that plays conda.
        locks: of both versions; the newer one is solved.
    """

    cache: Path
    channel: Channel
    program: Path
    locks: Path


def _make(folder: Path) -> Made:
    channel = Channel(folder / "channel")
    for cuda in VERSIONS:
        channel.add("cuda-version", cuda)
        files = {"bin/nvcc": NVCC.format(cuda)}
        channel.add("cuda-nvcc", f"{cuda}.1", f"cuda-version {cuda}.*", "__cuda >=12", files=files)
    channel.add("cxx-compiler", "1.0", "gxx >=12", files={"bin/g++": '#!/bin/sh\nexec /usr/bin/g++ "$@"\n'})
    channel.add("gxx", "12.3")
    channel.add("picky", "1.0", "__glibc >=2.17")
    channel.add("picky", "2.0", "__glibc >=2.34")
    channel.publish()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULTIWORLD_CACHE", str(folder / "cache"))
        patch.setattr(conda, "SPECIFICATION", folder / "environment.yml")
        patch.setattr(conda, "LOCKS", folder / "locks")
        (folder / "environment.yml").write_text(SPECIFICATION.format(url=channel.url))
        program = driver(folder, conda.tools() / "bin" / "python")
        other, solved = map(conda.Lock, VERSIONS)
        conda.make(solved, program)
        lockfile.write(other.path, other.inputs, "# a lock that only has to fit\n")
    return Made(folder / "cache", channel, program, folder / "locks")


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest) -> Iterator[Made]:
    found = once(request, "conda", _make)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULTIWORLD_CACHE", str(found.cache))
        yield found


@pytest.fixture
def program(made: Made) -> Path:
    return made.program


@pytest.fixture
def place(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of two CUDA versions, and no conda of the machine."""
    monkeypatch.setattr(conda, "SPECIFICATION", tmp_path / "environment.yml")
    monkeypatch.setattr(conda, "LOCKS", tmp_path / "locks")
    monkeypatch.setattr(conda, "locks", lambda: tuple(map(conda.Lock, VERSIONS)))
    for name in ("CONDA_EXE", "MAMBA_EXE", "CONDA_PREFIX", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "environment.yml").write_text(SPECIFICATION.format(url=made.channel.url))
    return tmp_path


@pytest.fixture
def locked(place: Path, made: Made) -> Path:
    shutil.copytree(made.locks, place / "locks")
    return place


def test_locks_are_made_and_then_fit(place: Path, made: Made) -> None:
    assert conda.check_locks() == ["cuda-12.1.conda-lock.yml", "cuda-12.4.conda-lock.yml"]
    shutil.copytree(made.locks, place / "locks")
    assert conda.check_locks() == []
    text = conda.Lock("12.4").path.read_text()
    assert f"url: {made.channel.url}/linux-64/cuda-nvcc-12.4.1-0.tar.bz2" in text
    assert "gxx-12.3-0.tar.bz2" in text
    assert "picky-1.0-0" in text  # 2.0 needs a newer glibc than wheels may
    assert str(made.channel.packages["cuda-nvcc-12.4.1-0.tar.bz2"]["sha256"]) in text  # type: ignore[index]
    assert "12.1" not in text.partition("package:")[2]
    assert "conda-lock-" not in text  # the folder in which it was made


@pytest.mark.parametrize("edit", ["environment", "lock", "virtual"])
def test_an_edit_is_named(edit: str, locked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if edit == "environment":
        path = locked / "environment.yml"
        path.write_text(path.read_text().replace("  # a comment", "\n# another"))
        assert conda.check_locks() == []
        path.write_text(path.read_text().replace("picky", "picky>=1"))
        said, names = "what it is made from has changed", VERSIONS
    elif edit == "lock":
        path = conda.Lock("12.4").path
        path.write_text(path.read_text().replace("version: 12.4.1", "version: 12.4.2"))
        said, names = "was changed by hand or is damaged", VERSIONS[1:]
    else:
        monkeypatch.setattr(conda, "GLIBC", "2.34")
        said, names = "what it is made from has changed", VERSIONS
    with pytest.raises(ReleaseDataError, match="locks are out of date") as caught:
        conda.check_locks()
    assert [name for name in ("12.1", "12.4") if f"cuda-{name}.conda-lock.yml: " in caught.value.cause] == [*names]
    assert said in caught.value.cause
    assert "nox -s lock" in caught.value.remedy


def test_the_check_asks_no_program(locked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert locked.is_dir()
    monkeypatch.setattr(conda, "run", lambda *_, **__: pytest.fail("a program was run"))
    assert conda.check_locks() == []


def test_a_toolchain_from_the_lock(locked: Path, program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert locked.is_dir()
    monkeypatch.setenv("CONDA_EXE", str(program))
    toolchains.check(Kind.CONDA, "12.4", 9)
    found = toolchains.find(Kind.CONDA, "12.4", 9)
    assert found.identity[1] == "nvcc V12.4.1"
    assert found.cuda_home is not None
    assert found.variables["CUDACXX"] == str(found.cuda_home / "bin" / "nvcc")
    assert found.cxx == found.cuda_home / "bin" / "g++"
    assert toolchains.find(Kind.CONDA, "12.4", 9) == found
    busy = [item for item in clearing.entries() if not clearing.free(item, really=False)]
    assert found.cuda_home in [item.path for item in busy], "this process still compiles with it"


def test_an_active_environment_is_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = place / "mine"
    (prefix / "bin").mkdir(parents=True)
    for name, text in (("nvcc", NVCC.format("12.4")), ("g++", '#!/bin/sh\nexec /usr/bin/g++ "$@"\n')):
        (prefix / "bin" / name).write_text(text)
        (prefix / "bin" / name).chmod(0o755)
    monkeypatch.setenv("CONDA_PREFIX", str(prefix))
    assert toolchains.find(Kind.CONDA, "12.4", 9).cuda_home == prefix
    monkeypatch.setenv("PATH", str(place))
    with pytest.raises(EnvironmentUnfitError, match="no conda, mamba or micromamba"):
        toolchains.check(Kind.CONDA, "12.1", 9)


def test_without_a_lock_there_is_no_toolchain(place: Path, program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert place.is_dir()
    monkeypatch.setenv("CONDA_EXE", str(program))
    with pytest.raises(EnvironmentUnfitError, match=r"no conda environment for CUDA 12\.4") as caught:
        conda.environment("12.4")
    assert "locks/cuda-12.4.conda-lock.yml is not there" in caught.value.cause


def test_a_package_that_no_channel_has(place: Path, program: Path) -> None:
    path = place / "environment.yml"
    path.write_text(path.read_text() + "  - unobtainium\n")
    with pytest.raises(EnvironmentUnfitError, match=r"environment of CUDA 12\.4 cannot be solved") as caught:
        conda.make(conda.Lock("12.4"), program)
    assert "unobtainium" in caught.value.cause
    assert not conda.Lock("12.4").path.exists()


def test_no_conda(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", str(place))
    command._make_conda("")
    command._check_conda()
    said = capsys.readouterr().out
    assert "conda locks not made: this machine has no conda, mamba or micromamba" in said
    assert "no conda lock yet: cuda-12.1.conda-lock.yml, cuda-12.4.conda-lock.yml; run `nox -s lock`" in said
    with pytest.raises(UsageError, match="--conda no-such-conda: there is no such program"):
        command._make_conda("no-such-conda")
