"""Place the equal changes of a patch in order, where the new file has as many of the lines they replace as the old."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from build.porting.alignment import Alignment
from build.porting.candidates import between
from build.porting.groups import Edit, Placed
from build.porting.lines import occurrences
from build.porting.placement import HunkResult, UnevenError, fit
from build.series.verdicts import Method, Verdict

#: Number of equal changes from which on they are one sweep through the file.
LEAST = 3

_Key: TypeAlias = tuple[tuple[bytes, ...], tuple[bytes, ...]]


def place(alignment: Alignment, located: Sequence[Placed | None], results: Sequence[HunkResult]) -> list[HunkResult]:
    """Return `results` with a place for the hunks whose changes are equal ones that leave no choice.

    Every block of these lines between two lines that both files share must be changed by the patch, and be there as
    often in the new file: then there is one assignment, whatever else was rewritten.
    """
    starts: dict[_Key, set[int]] = {}
    for group in (group for placed in located if placed for group in placed.groups):
        starts.setdefault(_key(alignment, group), set()).add(group.start)
    final = list(results)
    for number, (placed, result) in enumerate(zip(located, results, strict=True)):
        if placed and result.verdict is Verdict.CONFLICT and result.method is Method.HUMAN:
            final[number] = _placed(alignment, placed, starts) or result
    return final


def _key(alignment: Alignment, group: Edit) -> _Key:
    return tuple(alignment.base_norm[group.start : group.end]), group.lines


def _placed(alignment: Alignment, placed: Placed, starts: Mapping[_Key, set[int]]) -> HunkResult | None:
    edits = []
    for group in placed.groups:
        at = _counterpart(alignment, group, starts[_key(alignment, group)])
        if at is None:
            return None
        old, new = alignment.base[group.start : group.end], alignment.ours[at : at + group.end - group.start]
        try:
            lines, _ = fit(group.lines, zip(old, new, strict=True))
        except UnevenError:
            return None
        edits.append(Edit(at, at + len(new), tuple(lines)))
    offset = edits[0].start - (placed.groups[0].start + placed.hunk.first - placed.start)
    why = f"one of the patch's equal changes, in their order: as many of the lines are left (line {edits[0].start + 1})"
    return HunkResult(Verdict.DRIFTED, Method.MERGE, why, edits[0].start, tuple(edits), offset)


def _counterpart(alignment: Alignment, group: Edit, starts: set[int]) -> int | None:
    """Return the new line where a group's old lines must be; None if there are several assignments, or none."""
    old, new = between(alignment, group.start, group.end)
    block = list(alignment.base_norm[group.start : group.end])
    before = [old.start + n for n in occurrences(alignment.base_norm[old.start : old.stop], block)]
    now = [new.start + n for n in occurrences(alignment.ours_norm[new.start : new.stop], block)]
    if len(starts) < LEAST or group.start not in before or len(before) != len(now) or not starts.issuperset(before):
        return None
    at = now[before.index(group.start)]
    known = alignment.back[at : at + len(block)]
    return at if all(origin in {-1, group.start + n} for n, origin in enumerate(known)) else None
