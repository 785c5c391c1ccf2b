"""Find code that moved within its file, or into another one, by its distinctive lines."""

from __future__ import annotations

from dataclasses import dataclass, replace

from build.porting.alignment import Alignment, align
from build.porting.candidates import REACH, recognisable
from build.porting.functions import outward, shifted
from build.porting.groups import Edit, Group, Placed
from build.porting.hunks import HunkResult, human, port_hunk, unique_place
from build.porting.lines import distinctive
from build.porting.placement import UnevenError, fit, text
from build.series.verdicts import Method, Verdict

#: Code counts as moved when at most this share of its distinctive lines is still in the old place.
STAYED = 0.34
#: Least share of distinctive lines at the new place; the second best may have half as many at most.
FOUND = 0.6


@dataclass(frozen=True, slots=True)
class Region:
    """Lines `start..end` of the new file that the old one did not have there."""

    start: int
    end: int
    score: float = 0.0


def port_moved(alignment: Alignment, placed: Placed) -> HunkResult | None:
    """Port a hunk to the place where its code moved; None when it did not move, or the place is uncertain."""
    if not moved_away(alignment, placed):
        return None
    once = unique_place(alignment, placed)
    if once is not None and _is_new(alignment, once, placed):
        region = Region(once, once + placed.end - placed.start)
        if not _remains(alignment, placed, region) and (found := _as_it_was(alignment, placed, once)):
            return found
    best = _best(alignment, placed)
    return None if best is None or _remains(alignment, placed, best) else _within(alignment, placed, best)


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
    """Whether an old line is gone, or is a single kept line between lines that are gone."""
    near = alignment.to[max(0, at - 1) : at + 2]
    return alignment.to[at] < 0 or sum(image < 0 for image in near) >= 2


def moved_away(alignment: Alignment, placed: Placed) -> bool:
    """Whether few distinctive lines of a hunk are still in their place."""
    known = [n for n in range(placed.start, placed.end) if distinctive(alignment.base[n])]
    return bool(known) and sum(alignment.to[n] >= 0 for n in known) <= STAYED * len(known)


def _remains(alignment: Alignment, placed: Placed, region: Region) -> bool:
    """Whether the old place outside `region` still has many of the hunk's lines: then `region` is a copy."""
    first, last = alignment.before(placed.start)[1] + 1, alignment.after(placed.end)[1]
    here = {alignment.ours_norm[n] for n in range(first, last) if not region.start <= n < region.end}
    known = [n for n in range(placed.start, placed.end) if distinctive(alignment.base[n])]
    return sum(alignment.base_norm[n] in here for n in known) > STAYED * len(known)


def _is_new(alignment: Alignment, at: int, placed: Placed) -> bool:
    """Whether the distinctive lines at `at` are not what another part of the old file became."""
    for n in range(placed.end - placed.start):
        origin = alignment.back[at + n]
        if origin >= 0 and distinctive(alignment.ours[at + n]) and not placed.start <= origin < placed.end:
            return False
    return True


def _as_it_was(alignment: Alignment, placed: Placed, at: int) -> HunkResult | None:
    """Return the result of a hunk whose lines are together at `at`, possibly re-indented."""
    shift = at - placed.start
    edits, notes = [], []
    for group in placed.groups:
        try:
            lines, note = fit(group.added, _pairs(alignment, placed, group, shift))
        except UnevenError:
            return None
        edits.append(Edit(group.start + shift, group.end + shift, tuple(lines)))
        notes += [note] if note else []
    same = list(alignment.base[placed.start : placed.end]) == list(alignment.ours[at : at + placed.end - placed.start])
    evidence = "; ".join([f"moved to line {at + 1}, {text(alignment.ours[at])}", *dict.fromkeys(notes)])
    verdict = Verdict.OFFSET if same else Verdict.DRIFTED
    return HunkResult(verdict, Method.MOVED_CODE, evidence, at, tuple(edits), at - placed.hunk.first)


def _pairs(alignment: Alignment, placed: Placed, group: Group, shift: int) -> list[tuple[bytes, bytes]]:
    """Return the line pairs that decide the indentation: the replaced ones, else the hunk's lines next to them."""
    span = range(group.start, group.end)
    if not any(alignment.base[n].strip() for n in span):
        span = range(max(placed.start, group.start - 1), min(placed.end, group.end + 1))
    return [(alignment.base[n], alignment.ours[n + shift]) for n in span]


def regions(alignment: Alignment) -> list[Region]:
    """Return the runs of new lines; a run may have gaps of two lines."""
    return [Region(start, end) for start, end in alignment.fresh_runs if end - start >= 3]


def _best(alignment: Alignment, placed: Placed) -> Region | None:
    """Return the region with most of the lines around the hunk, if every other has less than half as many."""
    start, end = _window(alignment, placed)
    lost = {alignment.base_norm[n] for n in range(start, end) if alignment.to[n] < 0 and distinctive(alignment.base[n])}
    if len(lost) < 3:
        return None
    scored = []
    for region in regions(alignment):
        has = lost.intersection(alignment.ours_norm[region.start : region.end])
        scored.append(replace(region, score=len(has) / len(lost)))
    scored.sort(key=lambda item: -item.score)
    if not scored or scored[0].score < FOUND:
        return None
    return None if len(scored) > 1 and scored[1].score > scored[0].score / 2 else scored[0]


def _within(alignment: Alignment, placed: Placed, region: Region) -> HunkResult | None:
    """Port the hunk between the lines around it and the region they moved to."""
    start, end = _lost_run(alignment, placed)
    inner = align(alignment.base[start:end], alignment.ours[region.start : region.end])
    result = port_hunk(inner, shifted(placed, -start))
    if not result.edits and result.verdict is not Verdict.UPSTREAM:
        return None
    return outward(result, placed, region.start, alignment, moved=True)


def port_without_base(ours: Alignment, hunk_old: Placed) -> HunkResult:
    """Port a hunk that does not fit the old file: only its own lines can identify the place."""
    once = unique_place(ours, hunk_old)
    if once is None or not recognisable(ours.base_norm[hunk_old.start : hunk_old.end]):
        return human("does not apply to the old tree, and its lines are not in exactly one place of the new one")
    result = _as_it_was(ours, hunk_old, once)
    if result is None:
        return human("does not apply to the old tree")
    return replace(result, method=Method.OFFSET, evidence=f"does not apply to the old tree; {result.evidence}")
