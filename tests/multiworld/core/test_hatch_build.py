"""The engine is compiled with `CXX`, or the first C++ compiler that is there; without one, the reason is told."""

from __future__ import annotations

import ctypes
import os
import shutil
import time
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


@pytest.mark.parametrize("changed", ["", "whole.cc", "core/core.h", "new.cc"])
def test_an_engine_older_than_its_sources_is_compiled_again(tmp_path: Path, changed: str) -> None:
    for name in ("whole.cc", "core/core.h"):
        source = tmp_path / "multiworld" / "engine" / name
        source.parent.mkdir(parents=True, exist_ok=True)
        source.touch()
    assert not hatch_build.up_to_date(tmp_path)
    engine = tmp_path / hatch_build.ENGINE
    engine.touch()
    soon = time.time() + 60
    os.utime(engine, (soon, soon))
    if changed:
        (source := tmp_path / "multiworld" / "engine" / changed).touch()
        os.utime(source, (soon + 1, soon + 1))
    assert hatch_build.up_to_date(tmp_path) is not bool(changed)


@pytest.mark.parametrize(
    ("own", "why"), [("", "no compiler was found"), ("false", "false:"), ("/nowhere/c++", "/nowhere/c++:")]
)
def test_it_is_said_why_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, why: str) -> None:
    monkeypatch.setenv("CXX", own)
    monkeypatch.setattr(shutil, "which", only())
    assert why in hatch_build.compile_into(ROOT, tmp_path / "made.so")
    assert list(tmp_path.iterdir()) == []
