"""The groups of a hunk: each run of removed and added lines, with its place in the old file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from build.series.model import Hunk


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace lines `start..end` of a file (from 0, end excluded) by `lines`."""

    start: int
    end: int
    lines: tuple[bytes, ...]

    def removed(self, base: Sequence[bytes]) -> list[bytes]:
        return list(base[self.start : self.end])

    def moved(self, by: int) -> Edit:
        return Edit(self.start + by, self.end + by, self.lines)


@dataclass(frozen=True, slots=True)
class Placed:
    """A hunk at its place in the old file: its whole old side is lines `start..end`.

    `others` has the lines, normalised, that only other hunks of its file add.
    """

    hunk: Hunk
    number: int
    start: int
    end: int
    groups: tuple[Edit, ...]
    others: frozenset[bytes] = frozenset()


def split(hunk: Hunk, number: int, start: int) -> Placed:
    groups: list[Edit] = []
    at, first, added = start, start, list[bytes]()

    def close() -> None:
        if at > first or added:
            groups.append(Edit(first, at, tuple(added)))

    for line in hunk.lines:
        if line[:1] == b" ":
            close()
            at += 1
            first, added = at, []
        elif line[:1] == b"-":
            at += 1
        else:
            added.append(line[1:])
    close()
    return Placed(hunk, number, start, start + len(hunk.old), tuple(groups))


def apply_edits(lines: Sequence[bytes], edits: Sequence[Edit]) -> list[bytes]:
    """Return `lines` after `edits`; ValueError if two of them overlap or insert at the same place."""
    result: list[bytes] = []
    at, last = 0, -1
    for edit in sorted(edits, key=lambda item: (item.start, item.end)):
        if edit.start < at or (edit.start == last and edit.start == edit.end):
            raise ValueError(edit)
        result += [*lines[at : edit.start], *edit.lines]
        at, last = edit.end, edit.start
    result += lines[at:]
    # Only the last line of a file may have no line end.
    if all(line.endswith(b"\n") for line in (*lines[-1:], *(line for edit in edits for line in edit.lines))):
        return result
    return [line if line.endswith(b"\n") or n == len(result) else line + b"\n" for n, line in enumerate(result, 1)]
