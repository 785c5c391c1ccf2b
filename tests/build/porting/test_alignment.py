"""The alignment of the lines of two files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from build.errors import SourceError
from build.porting.alignment import align

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
MAPS = [
    ([0 + 1, -1, 2], [-1, 0, 2]),
    ([0, 1, 2], [0, 1, 2]),
    ([0, -1], [0]),
    ([0, 1, 3, 4, 5], [0, 1, -1, 2, 3, 4]),
    ([], [-1, -1]),
    ([-1], []),
]


@pytest.mark.parametrize(("pair", "maps"), list(zip(PAIRS, MAPS, strict=True)))
def test_lines_that_became_others(pair: tuple[list[bytes], list[bytes]], maps: tuple[list[int], list[int]]) -> None:
    found = align(*pair)
    assert (found.to, found.back) == maps


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
