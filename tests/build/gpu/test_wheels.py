"""The wheels of a bundle: chosen for another Python than this one, and only with the hash of the lock."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from build.errors import EnvironmentUnfitError
from build.gpu import wheels
from build.gpu.bundle import LOCK
from tests.build.official.server import Index

THIS = ".".join(platform.python_version_tuple()[:2])


def names(python: str) -> dict[str, str]:
    lines = wheels.requirements(LOCK.read_text(), python)
    assert all(" --hash=sha256:" in line and ";" not in line for line in lines)
    return dict(line.split(" ")[0].split("==") for line in lines)


def test_markers_are_those_of_the_other_python() -> None:
    old, new = names("3.10"), names("3.12")
    assert "tomli" in old
    assert "tomli" not in new
    assert old["numpy"] != new["numpy"]
    assert {"pytest", "pytest-timeout", "pytest-xdist", "typer", "rich", "prometheus-client", "nccl4py", "pip"} <= set(
        new
    )


def test_no_name_twice() -> None:
    lines = wheels.requirements(LOCK.read_text(), "3.12")
    assert len({line.split("==")[0] for line in lines}) == len(lines)


def test_a_wheel_with_another_hash_is_refused(
    lock: Path, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "left-1.0-py3-none-any.whl"
    monkeypatch.setitem(index.files, name, index.files[name] + b"\0")
    with pytest.raises(EnvironmentUnfitError, match=f"the wheels for Python {THIS} cannot be downloaded") as caught:
        wheels.download(wheels.requirements(lock.read_text(), THIS), THIS, tmp_path)
    assert "hash" in caught.value.cause.lower()
    assert not list(tmp_path.glob("left*"))


def test_no_wheel_for_that_python(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "files", dict(index.files))
    index.add("left-1.0-cp311-cp311-manylinux_2_17_x86_64.whl", b"")
    with pytest.raises(EnvironmentUnfitError, match=r"the wheels for Python 3\.12 cannot be downloaded"):
        wheels.download([f"left==1.0 --hash=sha256:{'0' * 64}"], "3.12", tmp_path)
