"""The package's own wheel: what it may need of a system, what its name says, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import hatch_build
from build import cli
from build.commands import wheels
from build.errors import EnvironmentUnfitError, ProbeError, WheelError
from build.overlay import toolchain
from build.paths import REPO
from build.wheels.archive import WheelWriter
from build.wheels.platforms import newer, platform_tag
from tests.build.overlay.little import shell

_NEWEST = "manylinux_2_28_x86_64"
#: Compiled on a newer system, it needs glibc 2.34.
_TOO = "manylinux_2_34_x86_64"
_TOO_NEW = "#include <pthread.h>\nint f(pthread_t *at) { return pthread_create(at, 0, 0, 0); }\n"
#: It needs nothing new.
_OLD = "int f(void) { return 1; }\n"


def wheel(folder: Path, platform: str, library: bytes) -> Path:
    """Return a wheel of the package's name with nothing but an engine in it."""
    path = folder / f"torch_multiworld-0.1.0-cp310-abi3-{platform}.whl"
    info = "torch_multiworld-0.1.0.dist-info"
    with WheelWriter(path, info) as out:
        out.add("multiworld/__init__.py", b"")
        out.add("multiworld/_engine.abi3.so", library)
        out.add(f"{info}/METADATA", b"Metadata-Version: 2.1\nName: torch-multiworld\nVersion: 0.1.0\n")
        tag = f"Tag: cp310-abi3-{platform}\n".encode()
        out.add(f"{info}/WHEEL", b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\n" + tag)
    return path


def compiled(folder: Path, code: str) -> bytes:
    (folder / "a.c").write_text(code)
    shell("gcc", "-shared", "-fPIC", folder / "a.c", "-o", folder / "a.so")
    return (folder / "a.so").read_bytes()


#: How much is optimized takes half of the time, and changes no function of a library that the code calls.
_AS_SHIPPED = pytest.param("-O3", marks=pytest.mark.nightly("the row -O0 links the same calls"))


@pytest.mark.slow
@pytest.mark.parametrize("level", ["-O0", _AS_SHIPPED])
def test_the_engine_needs_no_newer_system_than_promised(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in wheels.settings(toolchain.find(10)).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(hatch_build, "_OPTIONS", (*hatch_build._OPTIONS, level))
    made = tmp_path / hatch_build.ENGINE.name
    assert hatch_build.compile_into(REPO, made) == ""
    tag = platform_tag(made)
    assert newer(tag, _NEWEST) == _NEWEST
    # auditwheel's policies, and what a build without auditwheel says: never an older system.
    assert newer(tag, hatch_build.platform_tag(made.read_bytes())) in ("manylinux_2_17_x86_64", "manylinux_2_24_x86_64")


@pytest.mark.parametrize(("platform", "code"), [(_NEWEST, _OLD), (_NEWEST, _TOO_NEW), (_TOO, _TOO_NEW)])
def test_a_name_that_is_not_auditwheels_is_refused(platform: str, code: str, tmp_path: Path) -> None:
    with pytest.raises(WheelError, match="its name must say that"):
        wheels.check_tag(wheel(tmp_path, platform, compiled(tmp_path, code)))


def test_the_name_that_auditwheel_gives_is_accepted(tmp_path: Path) -> None:
    wheels.check_tag(wheel(tmp_path, "manylinux_2_5_x86_64", compiled(tmp_path, _OLD)))


def test_a_wheel_that_does_not_work_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS", "never")
    with pytest.raises(ProbeError, match="does not work on CPython 3"):
        list(wheels.tried(wheel(tmp_path, _NEWEST, compiled(tmp_path, _TOO_NEW)), tmp_path))


def test_without_a_compiler_there_is_one_clear_error_and_no_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
    assert cli.main(["wheels", "--dist", str(tmp_path / "dist")]) == EnvironmentUnfitError.exit_code
    assert "is not a program that can be run" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "dist").exists()
