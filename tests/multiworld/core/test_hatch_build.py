"""The native parts are compiled with whatever compiler there is, and missed without a trace where there is none."""

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
    [("", ("cc",)), ("", ("c++",)), ("cc -O0", ()), ("false", ("cc",)), ("/nowhere/cc", ("cc",))],
    ids=["C", "C++ only", "CC", "CC fails", "CC is missing"],
)
def test_it_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, found: tuple[str, ...]) -> None:
    if _which("cc") is None or _which("c++") is None:
        pytest.skip("no C and C++ compiler here")
    monkeypatch.setenv("CC", own)
    monkeypatch.setattr(shutil, "which", only(*found))
    target = tmp_path / "libpulse.so"
    assert hatch_build.compile_into(ROOT, hatch_build.PULSE, target) == ""
    assert ctypes.CDLL(str(target)).mw_pulse_abi() == 1
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


@pytest.mark.parametrize("library", [hatch_build.PULSE, hatch_build.ENGINE], ids=["pulse", "engine"])
@pytest.mark.parametrize(("own", "why"), [("", "no compiler was found"), ("false", "false:")])
def test_it_is_said_why_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Any, own: str, why: str
) -> None:
    monkeypatch.setenv(library.variable, own)
    monkeypatch.setattr(shutil, "which", only())
    assert why in hatch_build.compile_into(ROOT, library, tmp_path / "made.so")
    assert list(tmp_path.iterdir()) == []
