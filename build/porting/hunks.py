"""Port one hunk within one file: exact, offset, merge, moved code, upstream, in this order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from build.porting import already_upstream
from build.porting.alignment import Alignment
from build.porting.candidates import (
    only_home,
    other_candidates,
    recognisable,
    removed_duplicates,
    same_function,
    support,
)
from build.porting.groups import Edit, Group, Placed
from build.porting.lines import norm, occurrences
from build.porting.placement import GroupResult, Outcome, added_elsewhere, place_group, stuck, target
from build.series.verdicts import Method, Verdict

#: Share of the distinctive lines near a hunk that must be kept for its place to count as the same place.
SUPPORT = 0.5


@dataclass(frozen=True, slots=True)
class HunkResult:
    """Where a hunk went in the new file.

    Attributes:
        verdict, method, evidence: as in `HunkVerdict`.
        at: first line (from 0) it touches there, -1 for none.
        edits: its edits of the new file; none if it is upstream or left to a human.
        offset: lines between where the patch says and where it went.
    """

    verdict: Verdict
    method: Method
    evidence: str = ""
    at: int = -1
    edits: tuple[Edit, ...] = ()
    offset: int = 0


def human(evidence: str) -> HunkResult:
    return HunkResult(Verdict.CONFLICT, Method.HUMAN, evidence)


def port_hunk(alignment: Alignment, placed: Placed) -> HunkResult:
    at = _rigid(alignment, placed)
    if at is not None:
        return _unchanged(alignment, placed, at)
    results = [_group(alignment, placed, group) for group in placed.groups]
    return _combine(placed, results)


def _rigid(alignment: Alignment, placed: Placed) -> int | None:
    """Return where the hunk's old side is unchanged as a whole, by alignment; else None."""
    if placed.end == placed.start:
        return None
    at = alignment.to[placed.start]
    size = placed.end - placed.start
    if at < 0 or list(alignment.to[placed.start : placed.end]) != list(range(at, at + size)):
        return None
    same = list(alignment.base[placed.start : placed.end]) == list(alignment.ours[at : at + size])
    # At the edge of a hunk (start of a file, diff -U0) its own lines do not say what is next to an insertion.
    edge = [g for g in placed.groups if g.start == g.end and g.start in {placed.start, placed.end}]
    return at if same and all(target(alignment, group)[0] is not None for group in edge) else None


def _unchanged(alignment: Alignment, placed: Placed, at: int) -> HunkResult:
    """Return the result of a hunk whose lines are unchanged at `at`, if that place is certain."""
    trouble, note = doubts(alignment, placed, placed.start, at)
    if trouble:
        return human(trouble)
    for group in placed.groups:
        if elsewhere := added_elsewhere(alignment, group):
            return human(f"the lines it adds are already at line {elsewhere[0] + 1} of the new file")
    offset = at - placed.hunk.first
    shift = at - placed.start
    edits = tuple(Edit(g.start + shift, g.end + shift, g.added) for g in placed.groups)
    verdict, method = (Verdict.OFFSET, Method.OFFSET) if offset else (Verdict.CLEAN, Method.EXACT)
    return HunkResult(verdict, method, note, at, edits, offset)


def doubts(alignment: Alignment, placed: Placed, old_at: int, new_at: int) -> tuple[str, str]:
    """Return why a place is uncertain (empty if it is certain), and a note how it was distinguished from others."""
    note = ""
    shift = old_at - placed.start
    others = [at + shift for at in other_candidates(alignment, placed, new_at - shift)]
    if others:
        lines = ", ".join(str(line + 1) for line in others[:4])
        if not only_home(alignment, old_at, new_at, others):
            return f"the same lines are also at line {lines}: it is uncertain which are meant", ""
        note = f"the same lines are also at line {lines}; decided by the function they are in"
    elif removed_duplicates(alignment, placed) and not only_home(alignment, old_at, new_at, []):
        return "one of several equal blocks of the old file is gone; it is uncertain which one", ""
    if not same_function(alignment, old_at, new_at):
        return f"line {new_at + 1} has the same lines, but in another function", ""
    return "", note


def _group(alignment: Alignment, placed: Placed, group: Group) -> GroupResult:
    """Place a group of a hunk whose context changed, or find it upstream."""
    trust = support(alignment, group.start, group.end)
    result = place_group(alignment, group)
    if result.outcome is Outcome.PLACED:
        trouble, _ = doubts(alignment, placed, group.start, result.at)
        if trouble:
            return stuck(trouble)
        if trust < SUPPORT:
            return stuck("too little is left of the code around it")
        return result
    if trust < SUPPORT:
        return result
    found = already_upstream.look(alignment, group)
    return result if found.outcome is Outcome.STUCK else found


def _combine(placed: Placed, results: list[GroupResult]) -> HunkResult:
    blocked = [item for item in results if item.outcome is Outcome.STUCK]
    done = [item for item in results if item.outcome is Outcome.UPSTREAM]
    notes = "; ".join(dict.fromkeys(item.evidence for item in (blocked or results) if item.evidence))
    if blocked:
        if done:
            notes += f"; {len(done)} of its {len(results)} parts are upstream"
        return human(notes)
    if len(done) == len(results):
        return HunkResult(Verdict.UPSTREAM, Method.UPSTREAM, notes, done[0].at)
    edits = tuple(item.edit for item in results if item.edit is not None)
    at = min(edit.start for edit in edits)
    offset = at - (placed.groups[0].start + placed.hunk.first - placed.start)
    partly = done or any(item.outcome is Outcome.PARTLY for item in results)
    verdict = Verdict.PARTLY if partly else Verdict.DRIFTED
    return HunkResult(verdict, Method.MERGE, notes, at, edits, offset)


def context_changes(alignment: Alignment, placed: Placed) -> str:
    first, last = alignment.before(placed.start)[1], alignment.after(placed.end)[1]
    gone = _unmatched(alignment.base, alignment.to, range(placed.start, placed.end))
    new = _unmatched(alignment.ours, alignment.back, range(first + 1, last))
    parts = [f"changed: {gone[0]!r}"] if gone else []
    parts += [f"new: {new[0]!r}"] if new else []
    more = len(gone) + len(new) - len(parts)
    return ", ".join(parts) + (f" and {more} more lines" if more > 0 else "")


def _unmatched(lines: Sequence[bytes], images: Sequence[int], span: range) -> list[str]:
    return [norm(lines[n])[:60].decode("utf-8", "replace") for n in span if images[n] < 0 and lines[n].strip()]


def unique_place(alignment: Alignment, placed: Placed) -> int | None:
    """Return where the old side is, re-indented or not, if it occurs once in each file."""
    old = list(alignment.base_norm[placed.start : placed.end])
    places = occurrences(alignment.ours_norm, old)
    if len(places) != 1 or len(occurrences(alignment.base_norm, old)) != 1 or not recognisable(old):
        return None
    return places[0]
