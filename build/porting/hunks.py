"""Port one hunk within one file: exact, offset, merge, upstream, in this order. Moved code: see `moved_code`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from build.porting import already_upstream
from build.porting.alignment import Alignment
from build.porting.echoes import SURE, Echo, echo, removed_only
from build.porting.groups import Edit, Placed
from build.porting.lines import distinctive, headings, imports_only, norm
from build.porting.placement import (
    HunkResult,
    anchored,
    human,
    other_candidates,
    place_group,
    same_function,
    stands,
    support,
    target,
)
from build.series.model import Method, Verdict

#: Share of the distinctive lines near a hunk that must be kept for its place to count as the same place.
SUPPORT = 0.5


def port_hunk(alignment: Alignment, placed: Placed) -> HunkResult:
    at = rigid(alignment, placed)
    if at is not None:
        return _unchanged(alignment, placed, at)
    results = [_group(alignment, placed, group) for group in placed.groups]
    result = _combine(placed, results)
    if result.verdict in {Verdict.UPSTREAM, Verdict.PARTLY}:
        return result
    found = echo(alignment, placed, far=bool(result.edits))
    if found is None:
        return result
    if result.edits:
        return _echoed(alignment, placed.groups, found)
    gone = all(alignment.to[n] < 0 for n in removed_only(alignment, placed.groups))
    if found.near and found.share >= SURE and gone:
        return _echoed(alignment, (), found)
    return _perhaps(found, result.evidence)


def rigid(alignment: Alignment, placed: Placed) -> int | None:
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
    trouble = doubts(alignment, placed, (placed.start, placed.end), (at, at + placed.end - placed.start))
    if trouble:
        return human(trouble)
    for group in placed.groups:
        if why_not := stands(alignment, group):
            return human(why_not)
    if found := echo(alignment, placed):
        lines = placed.groups[0].start + at - placed.start, found.start
        here, there = (headings(alignment.ours, line) for line in lines)
        if here and there and here[-1] != there[-1]:
            return _perhaps(found, "but in another function")
        return _echoed(alignment, placed.groups, found)
    offset = at - placed.hunk.first
    shift = at - placed.start
    edits = tuple(group.moved(shift) for group in placed.groups)
    verdict, method = (Verdict.OFFSET, Method.OFFSET) if offset else (Verdict.CLEAN, Method.EXACT)
    return HunkResult(verdict, method, "", at, edits, offset)


def _echoed(alignment: Alignment, groups: Sequence[Edit], found: Echo) -> HunkResult:
    """Return the result of changes that could be placed, but stand in the new file already, as far as words tell."""
    if not found.near or found.share < SURE or removed_only(alignment, groups):
        return _perhaps(found)
    evidence = f"already at {found.where} of the new file, in {found.share:.0%} of its words"
    there = range(found.start, found.end)
    return HunkResult(Verdict.UPSTREAM, Method.UPSTREAM, evidence, found.start, there=there, alike=True)


def _perhaps(found: Echo, evidence: str = "") -> HunkResult:
    """Return the result of a hunk that upstream may have in another form, which a person has to tell."""
    said = f"what it adds seems to be at {found.where} of the new file already"
    result = human("; ".join(part for part in (said, evidence) if part))
    return replace(result, method=Method.UPSTREAM, there=range(found.start, found.end), alike=True)


def doubts(alignment: Alignment, placed: Placed, old: tuple[int, int], new: tuple[int, int]) -> str:
    """Return why the new lines `new` are uncertain as the place of `old`; empty if they are certain."""
    shift = old[0] - placed.start
    if others := [at + shift for at in other_candidates(alignment, placed, new[0] - shift)]:
        lines = ", ".join(str(line + 1) for line in others[:4])
        return f"the same lines are also at line {lines}: it is uncertain which are meant"
    if not same_function(alignment, old[0], new[0]) and not anchored(alignment, old, new):
        return f"line {new[0] + 1} has the same lines, but in another function"
    return ""


def _group(alignment: Alignment, placed: Placed, group: Edit) -> HunkResult:
    """Place a group of a hunk whose context changed, or find it upstream."""
    trust = support(alignment, group.start, group.end)
    result = place_group(alignment, group)
    if result.verdict is Verdict.DRIFTED:
        span = (group.start, group.end), (result.at, result.at + group.end - group.start)
        trouble = doubts(alignment, placed, *span)
        if trouble:
            return human(trouble)
        if trust < SUPPORT and not anchored(alignment, *span) and not _above_known(alignment, group, result.at):
            return human("too little is left of the code around it")
        return result
    if trust < SUPPORT:
        return result
    found = already_upstream.look(alignment, group)
    return result if found.verdict is Verdict.CONFLICT else found


def _above_known(alignment: Alignment, group: Edit, at: int) -> bool:
    """Return whether imports go right above a line at the margin that each file has once."""
    if not imports_only(group.lines) or group.end != group.start or alignment.to[group.end :][:1] != [at]:
        return False
    line = alignment.ours[at]
    return norm(line) in alignment.once and distinctive(line) and not line[:1].isspace()


def _combine(placed: Placed, results: list[HunkResult]) -> HunkResult:
    blocked = [item for item in results if item.verdict is Verdict.CONFLICT]
    done = [item for item in results if item.verdict is Verdict.UPSTREAM]
    notes = "; ".join(dict.fromkeys(item.evidence for item in (blocked or results) if item.evidence))
    if blocked:
        if done:
            notes += f"; {len(done)} of its {len(results)} parts are upstream"
        return human(notes)
    if len(done) == len(results):
        end = max(item.at + len(group.lines) for group, item in zip(placed.groups, results, strict=True))
        return HunkResult(Verdict.UPSTREAM, Method.UPSTREAM, notes, done[0].at, there=range(done[0].at, end))
    partly = any(item.verdict is Verdict.PARTLY for item in results)
    if done or (partly and len(results) > 1):
        return human(f"upstream has some of its {len(results)} parts: {notes}")
    edits = tuple(edit for item in results for edit in item.edits)
    at = min(edit.start for edit in edits)
    offset = at - (placed.groups[0].start + placed.hunk.first - placed.start)
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
