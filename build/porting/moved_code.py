"""Find code that moved within its file, or into another one, by its distinctive lines."""

from __future__ import annotations

from build.porting.alignment import Alignment, align
from build.porting.candidates import REACH
from build.porting.functions import outward, shifted
from build.porting.groups import Placed
from build.porting.hunks import port_hunk
from build.porting.lines import distinctive
from build.porting.placement import HunkResult
from build.series.verdicts import Verdict

#: Code counts as moved when at most this share of its distinctive lines is still in the old place.
STAYED = 0.34
#: Least share of distinctive lines at the new place; the second best may have half as many at most.
FOUND = 0.6


def port_moved(alignment: Alignment, placed: Placed) -> HunkResult | None:
    """Port a hunk to the place where its code moved; None when it did not move, or the place is uncertain."""
    if not moved_away(alignment, placed):
        return None
    best = _best(alignment, placed)
    return None if best is None else _within(alignment, placed, best)


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


def _within(alignment: Alignment, placed: Placed, region: range) -> HunkResult | None:
    """Port the hunk between the lines around it and the region they moved to."""
    start, end = _lost_run(alignment, placed)
    inner = align(alignment.base[start:end], alignment.ours[region.start : region.stop])
    result = port_hunk(inner, shifted(placed, -start))
    if not result.edits and result.verdict is not Verdict.UPSTREAM:
        return None
    return outward(result, placed, region.start, alignment, moved=True)
