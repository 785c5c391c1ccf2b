"""The stubs with which built wheels are imported."""

from __future__ import annotations

import subprocess
from pathlib import Path

from build.overlay import toolchain
from build.overlay.symbols import dynamic
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
