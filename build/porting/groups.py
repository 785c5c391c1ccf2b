"""The groups of a hunk: each run of removed and added lines, with its place in the old file.

And conflict markers as diff3 writes them, around the hunks that a person has to decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from build.porting.alignment import Alignment
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


@dataclass(frozen=True, slots=True)
class Labels:
    """The names of a conflict's sides in its markers."""

    ours: bytes
    base: bytes
    theirs: bytes


@dataclass(frozen=True, slots=True)
class Region:
    """Old lines `old` and the new lines `new` that a conflict is about (both from 0, end excluded)."""

    old: tuple[int, int]
    new: tuple[int, int]


def region(alignment: Alignment, placed: Placed) -> Region:
    """Return the smallest region around a hunk's changes whose ends both files share."""
    first, last = placed.groups[0].start, placed.groups[-1].end
    before, after = alignment.before(first), alignment.after(last)
    if after[1] <= before[1]:
        return Region((first, last), (before[1] + 1, before[1] + 1))
    return Region((before[0] + 1, after[0]), (before[1] + 1, after[1]))


def mark(alignment: Alignment, placed: Sequence[Placed], area: Region, labels: Labels) -> Edit:
    """Return the edit that puts markers around `area`; `placed` are the hunks that conflict there."""
    start, end = area.old
    old = list(alignment.base[start:end])
    edits = [
        group.moved(-start) for item in placed for group in item.groups if start <= group.start and group.end <= end
    ]
    new = alignment.ours[area.new[0] : area.new[1]]
    return Edit(*area.new, tuple(conflict(labels, new, old, apply_edits(old, edits))))


def conflict(labels: Labels, ours: Sequence[bytes], base: Sequence[bytes], theirs: Sequence[bytes]) -> list[bytes]:
    """Return the lines of three sides between markers."""
    lines: list[bytes] = []
    heads = (b"<<<<<<< " + labels.ours, b"||||||| " + labels.base, b"=======")
    for head, body in zip(heads, (ours, base, theirs), strict=True):
        lines += [head + b"\n", *(line if line.endswith(b"\n") else line + b"\n" for line in body)]
    return [*lines, b">>>>>>> " + labels.theirs + b"\n"]


def merged(areas: Sequence[tuple[Region, Placed]]) -> list[tuple[Region, list[Placed]]]:
    """Join conflicts whose regions touch, so that each line is marked once."""
    joined: list[tuple[Region, list[Placed]]] = []
    for area, item in sorted(areas, key=lambda pair: (pair[0].new, pair[0].old)):
        if joined and (area.new[0] <= joined[-1][0].new[1] or area.old[0] <= joined[-1][0].old[1]):
            last, items = joined[-1]
            old = (min(last.old[0], area.old[0]), max(last.old[1], area.old[1]))
            new = (last.new[0], max(last.new[1], area.new[1]))
            joined[-1] = (Region(old, new), [*items, item])
        else:
            joined.append((area, [item]))
    return joined
