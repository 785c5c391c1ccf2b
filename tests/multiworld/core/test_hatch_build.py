"""The engine is compiled with `CXX`, or the first C++ compiler that is there; without one, the reason is told."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path
from typing import Any

import pytest

hatch_build: Any = pytest.importorskip("hatch_build", reason="only in a source tree")
ROOT = Path(hatch_build.__file__).parent
_which = shutil.which


def only(*names: str) -> Any:
    """A machine that has these commands and no other."""
    return lambda name: _which(name) if name in names else None


@pytest.mark.parametrize(
    ("own", "found"),
    [("", ("c++",)), ("", ("g++",)), ("c++ -O0", ())],
    ids=["c++", "g++ only", "CXX"],
)
def test_it_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, found: tuple[str, ...]) -> None:
    monkeypatch.setenv("CXX", own)
    monkeypatch.setattr(shutil, "which", only(*found))
    monkeypatch.setattr(hatch_build, "_SOURCE", small := tmp_path / "small.cc")
    small.write_text('extern "C" __attribute__((visibility("default"))) int small() { return 1; }\n')
    target = tmp_path / "made" / hatch_build.ENGINE.name
    target.parent.mkdir()
    assert hatch_build.compile_into(ROOT, target) == ""
    assert ctypes.CDLL(str(target)).small() == 1
    assert [path.name for path in target.parent.iterdir()] == [target.name]


@pytest.mark.parametrize(
    ("own", "why"), [("", "no compiler was found"), ("false", "false:"), ("/nowhere/c++", "/nowhere/c++:")]
)
def test_it_is_said_why_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, why: str) -> None:
    monkeypatch.setenv("CXX", own)
    monkeypatch.setattr(shutil, "which", only())
    assert why in hatch_build.compile_into(ROOT, tmp_path / "made.so")
    assert list(tmp_path.iterdir()) == []
