"""Imports of built wheels, and the stubs for that."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from build.errors import OverlayCheckError
from build.overlay import toolchain
from build.overlay.symbols import dynamic
from build.wheeltest import imports
from build.wheeltest.imports import _make_stubs

#: Without versions, as libraries have them that were linked without the C++ runtime.
_SOURCE = """
extern "C" int cuAnswer();
void* operator new(unsigned long);
extern "C" bool ask() { return cuAnswer() && operator new(1); }
"""


def test_stubs_are_nvidias_alone(tmp_path: Path) -> None:
    """A stub of `operator new` ends each process that finds it before the real one."""
    source, real, library = (tmp_path / name for name in ("user.cpp", "libcuanswer.so.1", "libuser.so"))
    source.write_text(_SOURCE)
    plain = ["g++", "-shared", "-fPIC", "-nostdlib"]
    subprocess.run([*plain, "-Wl,-soname,libcuanswer.so.1", "-x", "c++", "/dev/null", "-o", real], check=True)
    subprocess.run([*plain, "-Wl,--no-as-needed", source, real, "-o", library], check=True)
    (tmp_path / "stubs").mkdir()
    _make_stubs(toolchain.find(9), [library], tmp_path / "stubs")
    assert [item.name for item in dynamic(tmp_path / "stubs" / "libcuanswer.so.1", "T")] == ["cuAnswer"]


def test_an_import_that_never_ends_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended the build with "a command did not end", which named neither wheel nor remedy."""
    wheel = tmp_path / "torch-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("torch/__init__.py", "import threading\nthreading.Event().wait()\n")
    folders = [tmp_path / name for name in ("libraries", "stubs", "packages")]
    for folder in folders:
        folder.mkdir()
    monkeypatch.setattr(imports, "_LONGEST", 1.0)
    around = imports.Surroundings(Path(sys.executable), *folders)
    with pytest.raises(OverlayCheckError, match="a wheel does not import") as caught:
        imports.require([imports.Subject((wheel,), "1", "")], around)
    assert caught.value.cause == f"{wheel.name}: importing torch did not end in 1 s"
