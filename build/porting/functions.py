"""Port a hunk within its function, found by its first line, or to the lines of its file where its code moved."""

from __future__ import annotations

import re
from dataclasses import replace

from build.porting.alignment import Alignment, align
from build.porting.already_upstream import only_moved
from build.porting.echoes import echo
from build.porting.groups import Placed, Region, region
from build.porting.hunks import port_hunk
from build.porting.lines import distinctive, end_of, headings
from build.porting.placement import REACH, HunkResult, added_elsewhere, text
from build.series.model import Method, Verdict

#: Line numbers in evidence; quoted code is passed over.
_LINES = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\blines? \d+(?: to \d+|(?:, \d+)+)?""")
#: Code counts as moved when at most this share of its distinctive lines is still in the old place.
STAYED = 0.34
#: Least share of distinctive lines at the new place; the second best may have half as many at most.
FOUND = 0.6


def port_in_function(alignment: Alignment, placed: Placed) -> HunkResult | None:
    """Port a hunk between the old and the new form of its function (or class).

    The alignment of whole files is wrong where functions were moved or copied. A first line that both files have once
    identifies the function. Without such a line, or without a certain place in that function, the result is None.
    """
    found = function_of(alignment, placed)
    if found is None:
        return None
    old, new, within = found
    result = port_hunk(within, shifted(placed, -old))
    if result.verdict is Verdict.CONFLICT or _elsewhere(alignment, placed, result):
        return None
    return outward(result, placed, new, alignment, moved=alignment.to[old] != new)


def _elsewhere(alignment: Alignment, placed: Placed, result: HunkResult) -> bool:
    """Return whether the rest of the new file may have what a hunk adds, or has what upstream seems to remove."""
    if result.verdict is Verdict.UPSTREAM:
        return any(only_moved(alignment, group) for group in placed.groups)
    return echo(alignment, placed) is not None or any(added_elsewhere(alignment, group) for group in placed.groups)


def function_of(alignment: Alignment, placed: Placed) -> tuple[int, int, Alignment] | None:
    """Return where the function (or class) of a hunk begins in the old and in the new file, and its lines aligned.

    None unless its first line is in each file exactly once.
    """
    chain = headings(alignment.base, placed.groups[0].start)
    if not chain or placed.start < chain[-1]:
        return None
    first = alignment.base_norm[chain[-1]]
    if alignment.base_norm.count(first) != 1 or alignment.ours_norm.count(first) != 1:
        return None
    old, new = chain[-1], alignment.ours_norm.index(first)
    old_end, new_end = end_of(alignment.base, old), end_of(alignment.ours, new)
    if placed.end > old_end:
        return None
    return old, new, align(alignment.base[old:old_end], alignment.ours[new:new_end])


def conflict_of(alignment: Alignment, placed: Placed) -> Region:
    """Return the lines to mark for a hunk left to a human: in its function, if that is known."""
    found = function_of(alignment, placed)
    if found is None:
        return region(alignment, placed)
    old, new, within = found
    inner = region(within, shifted(placed, -old))
    return Region((inner.old[0] + old, inner.old[1] + old), (inner.new[0] + new, inner.new[1] + new))


def shifted(placed: Placed, by: int) -> Placed:
    """Return a hunk whose old file begins `-by` lines later."""
    groups = tuple(group.moved(by) for group in placed.groups)
    return replace(placed, start=placed.start + by, end=placed.end + by, groups=groups)


def _further_down(evidence: str, lines: int) -> str:
    """Return evidence about a part of a file that begins `lines` further down, as evidence about the file."""

    def moved(found: re.Match[str]) -> str:
        if found[0][0] in "'\"":
            return found[0]
        return re.sub(r"\d+", lambda number: str(int(number[0]) + lines), found[0])

    return _LINES.sub(moved, evidence)


def outward(result: HunkResult, placed: Placed, start: int, alignment: Alignment, *, moved: bool) -> HunkResult:
    """Convert a result for the part of the new file from `start` on to one for the whole file."""
    at = result.at + start
    edits = tuple(edit.moved(start) for edit in result.edits)
    offset = at - placed.hunk.first
    if result.verdict is Verdict.DRIFTED:
        offset = at - (placed.groups[0].start + placed.hunk.first - placed.start)
    evidence = _further_down(result.evidence, start)
    there = range(result.there.start + start, result.there.stop + start)
    result = replace(result, at=at, edits=edits, offset=offset, evidence=evidence, there=there)
    if result.verdict in {Verdict.CLEAN, Verdict.OFFSET}:
        result = replace(result, verdict=Verdict.OFFSET if offset else Verdict.CLEAN)
    if not moved or result.verdict is Verdict.UPSTREAM:
        return result
    evidence = "; ".join(p for p in (f"moved to line {at + 1}, {text(alignment.ours[at])}", result.evidence) if p)
    return replace(result, method=Method.MOVED_CODE, evidence=evidence)


def port_moved(alignment: Alignment, placed: Placed) -> HunkResult | None:
    """Port a hunk to the place where its code moved; None when it did not move, or the place is uncertain."""
    if not moved_away(alignment, placed):
        return None
    if (there := _best(alignment, placed)) is None:
        return None
    start, end = _lost_run(alignment, placed)
    result = port_hunk(
        align(alignment.base[start:end], alignment.ours[there.start : there.stop]), shifted(placed, -start)
    )
    if not result.edits and result.verdict is not Verdict.UPSTREAM:
        return None
    return outward(result, placed, there.start, alignment, moved=True)


def _window(alignment: Alignment, placed: Placed) -> tuple[int, int]:
    return max(0, placed.start - REACH), min(len(alignment.base), placed.end + REACH)


def _lost_run(alignment: Alignment, placed: Placed) -> tuple[int, int]:
    """Return the old lines around a hunk that are gone together: the whole block that moved."""
    start, end = placed.start, placed.end
    while start > 0 and _lost(alignment, start - 1):
        start -= 1
    while end < len(alignment.base) and _lost(alignment, end):
        end += 1
    return (start, end) if end - start > placed.end - placed.start + 4 else _window(alignment, placed)


def _lost(alignment: Alignment, at: int) -> bool:
    """Return whether an old line is gone, or is a single kept line between lines that are gone."""
    near = alignment.to[max(0, at - 1) : at + 2]
    return alignment.to[at] < 0 or sum(image < 0 for image in near) >= 2


def moved_away(alignment: Alignment, placed: Placed) -> bool:
    """Return whether few distinctive lines of a hunk are still in their place."""
    known = [n for n in range(placed.start, placed.end) if distinctive(alignment.base[n])]
    return bool(known) and sum(alignment.to[n] >= 0 for n in known) <= STAYED * len(known)


def _best(alignment: Alignment, placed: Placed) -> range | None:
    """Return the run of new lines with most of the lines around the hunk, if no other has half as many."""
    start, end = _window(alignment, placed)
    lost = {alignment.base_norm[n] for n in range(start, end) if alignment.to[n] < 0 and distinctive(alignment.base[n])}
    if len(lost) < 3:
        return None
    runs = (range(*run) for run in alignment.fresh_runs if run[1] - run[0] >= 3)
    has = {run: len(lost.intersection(alignment.ours_norm[run.start : run.stop])) / len(lost) for run in runs}
    best, *others = sorted(has, key=has.__getitem__, reverse=True) or [range(0)]
    if not has or has[best] < FOUND or (others and has[others[0]] > has[best] / 2):
        return None
    return best
