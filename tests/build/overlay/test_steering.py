"""The compiler's environment steers nothing: neither what is linked, nor what is written beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from build.overlay.toolchain import find, run_compiler


def test_the_linker_takes_no_library_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cxx = find(9).cxx
    (tmp_path / "stray.cpp").write_text("int stray() { return 1; }\n")
    assert not run_compiler(
        [cxx, "-shared", "-fPIC", tmp_path / "stray.cpp", "-o", tmp_path / "libstray.so"], timeout=60
    ).returncode
    monkeypatch.setenv("LIBRARY_PATH", str(tmp_path))
    done = run_compiler([cxx, "-shared", "-o", tmp_path / "made.so", "-lstray"], timeout=60)
    assert done.returncode
    assert "-lstray" in done.tail


def test_no_dependencies_are_written_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "unit.cpp").write_text("int f() { return 1; }\n")
    monkeypatch.setenv("DEPENDENCIES_OUTPUT", str(tmp_path / "stray.d"))
    done = run_compiler([find(9).cxx, "-c", tmp_path / "unit.cpp", "-o", tmp_path / "unit.o"], timeout=60)
    assert (done.returncode, (tmp_path / "stray.d").exists()) == (0, False)


def test_the_compiler_is_found_as_it_is_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stray COMPILER_PATH must not make the version that was asked for another one than that which compiles."""
    script = tmp_path / "g++"
    script.write_text('#!/bin/sh\n[ -z "${COMPILER_PATH+set}" ] && exec g++ "$@"\necho 1\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("COMPILER_PATH", "")
    assert find(9).major >= 9
