"""The alignment of several files, which git gets together."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from build.errors import SourceError
from build.porting import alignment, functions
from build.porting.alignment import Alignment, Change, align, align_all, diffs, text_of
from build.porting.groups import split

from .code import hunks, replaced, source

#: Lines that look like those of a diff.
LIKE_A_DIFF = [b"diff --git 1 1\n", b"@@ -1 +1 @@\n", b"-a\n", b"+b\n", b"\\ No newline at end of file\n"]
PAIRS = [
    ([b"one\n", b"two\n", b"three"], [b"zero\n", b"one\n", b"three\n"]),
    ([b"same\n"] * 3, [b"same\n"] * 3),
    ([b"re-indented\n", b"gone\n"], [b"    re-indented\n"]),
    (LIKE_A_DIFF, [*LIKE_A_DIFF[:2], b"new\n", *LIKE_A_DIFF[2:]]),
    ([], [b"\n", b"new\n"]),
    ([b"old\n"], []),
]


def maps(found: Alignment) -> tuple[Sequence[int], Sequence[int]]:
    return found.to, found.back


def test_files_are_aligned_together_as_each_alone() -> None:
    together = [maps(item) for item in align_all(PAIRS)]
    assert together == [
        ([0 + 1, -1, 2], [-1, 0, 2]),
        ([0, 1, 2], [0, 1, 2]),
        ([0, -1], [0]),
        ([0, 1, 3, 4, 5], [0, 1, -1, 2, 3, 4]),
        ([], [-1, -1]),
        ([-1], []),
    ]
    alignment._LAST.clear()
    assert together == [maps(align(*pair)) for pair in PAIRS]


def test_functions_of_changed_hunks_are_aligned_by_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    old = source()
    new = replaced(old, ("step_alpha_7(", "stage_alpha_7("), ("step_zeta_7(", "stage_zeta_7("))
    patched = replaced(old, ("step_alpha_6(", "my_step_6("), ("step_zeta_6(", "my_step_6("))
    [found] = align_all([(text_of(old.encode()).lines, text_of(new.encode()).lines)])
    changed = [split(hunk, 1, hunk.first) for hunk in hunks(old, patched)]
    calls: list[int] = []

    def counted(pairs: Sequence[tuple[bytes, bytes]], *algorithms: str) -> list[list[list[Change]]]:
        calls.extend([len(pairs)] if pairs else [])
        return diffs(pairs, *algorithms)

    monkeypatch.setattr(alignment, "diffs", counted)
    functions.prepare((found, placed) for placed in changed)
    assert len(changed) == 2
    assert all(functions.function_of(found, placed) for placed in changed)
    assert calls == [2]


def test_a_diff_that_fails_is_no_alignment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its output may end anywhere: files that are not in it would count as equal, or not be found."""
    real, script = shutil.which("git"), tmp_path / "git"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *--no-index*) echo \'fatal: no space left\' >&2; exit 128;; esac\nexec {real} "$@"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(SourceError, match="git diff failed") as caught:
        align([b"never\n", b"seen\n"], [b"before\n"])
    assert "fatal: no space left" in caught.value.cause
