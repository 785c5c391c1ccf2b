"""git's diffs of several pairs of files, made by one command."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from build.errors import SourceError
from build.git import Git

#: The diff of one file of a folder.
_FILE = re.compile(rb"^diff --git a/(\d+) b/\1\n((?:(?!diff --git ).*\n)*)", re.MULTILINE)
_HUNK = re.compile(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", re.MULTILINE)


class Change(NamedTuple):
    """Lines `start..end` of the old file became lines `new_start..new_end` (from 0, ends excluded)."""

    start: int
    end: int
    new_start: int
    new_end: int


def diffs(
    pairs: Sequence[tuple[bytes, bytes]], *algorithms: Sequence[str], context: int = 0
) -> list[list[list[Change]]]:
    """Return the changes between two files, for each of `pairs`, by each algorithm (options of git's).

    Without context, git compares no lines that both files end with. So a copy, of which one end is equal to the
    original's, may be the other one of the two. With a line of `context` it is as in a merge.

    Raises:
        SourceError: git failed.
    """
    differing = [number for number, (old, new) in enumerate(pairs) if old != new]
    if not differing:
        return [[[] for _ in pairs] for _ in algorithms]
    with tempfile.TemporaryDirectory(prefix="multiworld-diff-") as folder:
        for side, name in enumerate("ab"):
            Path(folder, name).mkdir()
            for number in differing:
                Path(folder, name, str(number)).write_bytes(pairs[number][side])
        outputs = [_diff(Path(folder), *options, context=context) for options in algorithms]
    return [_changes(output, len(pairs), context) for output in outputs]


def _diff(folder: Path, *options: str, context: int) -> bytes:
    """Return git's diffs of the files in the folders `a` and `b`."""
    done = Git(folder).call(
        *("diff", "--no-index", "--text", f"--unified={context}", "--no-renames", "--no-prefix", "--no-color"),
        *(*options, "a", "b"),
    )
    if done.returncode not in (0, 1):
        raise SourceError("git diff failed", cause=done.tail)
    return done.stdout


def _changes(output: bytes, count: int, context: int) -> list[list[Change]]:
    found: list[list[Change]] = [[] for _ in range(count)]
    # A line of a file has "+", "-" or a blank before it, so these are git's own.
    for number, diff in _FILE.findall(output):
        made = _inside(diff) if context else (_change(match) for match in _HUNK.finditer(diff))
        found[int(number)] = list(made)
    return found


def _inside(diff: bytes) -> Iterator[Change]:
    """Yield the changes of a diff with context, each a run of removed and added lines."""
    old = new = start = new_start = 0
    first = _HUNK.search(diff)  # above it are the files' names, which begin like changes
    for line in diff[first.start() :].split(b"\n") if first else ():
        kind = line[:1]
        if kind in {b"-", b"+"}:
            old, new = old + (kind == b"-"), new + (kind == b"+")
        elif kind != b"\\":  # what git says of a missing line end
            if (old, new) != (start, new_start):
                yield Change(start, old, new_start, new)
            head = _HUNK.match(line)
            old, new = _change(head)[::2] if head else (old + 1, new + 1)
            start, new_start = old, new


def _change(match: re.Match[bytes]) -> Change:
    """Return the change of a hunk's head; where it has no lines, git names the line before them."""
    old, new = int(match[1]), int(match[3])
    old_count = 1 if match[2] is None else int(match[2])
    new_count = 1 if match[4] is None else int(match[4])
    start, new_start = old - (old_count > 0), new - (new_count > 0)
    return Change(start, start + old_count, new_start, new_start + new_count)
