"""Port all hunks of one text file."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from build.git import Git
from build.porting.alignment import Alignment, align
from build.porting.functions import conflict_of, port_in_function, port_moved
from build.porting.groups import Edit, Labels, Placed, Region, apply_edits, mark, merged, split
from build.porting.hunks import context_changes, port_hunk
from build.porting.lines import norm
from build.porting.placement import HunkResult, human
from build.series.inspect import lines_of, locate_all
from build.series.model import Hunk, Method, Verdict

#: Number of hunks of a file from which on they are not compared with each other.
MOST_HUNKS = 60


@dataclass(frozen=True, slots=True)
class TextPort:
    """One file, ported.

    Attributes:
        new: the new file with every hunk that found its place.
        marked: the same with conflict markers around the others; equal to `new` if there are none.
        hunks: one result per hunk.
        lines: where each hunk is in `new` (from 1, 0 for none).
    """

    new: bytes
    marked: bytes
    hunks: tuple[HunkResult, ...]
    lines: tuple[int, ...]


def port_text(
    base: bytes, ours: bytes, hunks: Sequence[Hunk], labels: Labels, suspects: Mapping[int, str] = MappingProxyType({})
) -> TextPort:
    """Port the hunks of one file; `suspects` are those (from 0) that are left to a human, and why."""
    alignment, located, found = _each(base, ours, tuple(hunks))
    results = [human(suspects[n]) if n in suspects else result for n, result in enumerate(found)]
    results = crosscheck(alignment, located, _apart(results))
    conflicts, results = _conflicts(alignment, located, results)
    edits = [edit for result in results for edit in result.edits]
    done = b"".join(apply_edits(alignment.ours, edits))
    marks = [mark(alignment, items, area, labels) for area, items in conflicts]
    marked = b"".join(apply_edits(alignment.ours, [*edits, *marks]))
    return TextPort(done, marked, tuple(results), tuple(_line(result, edits) for result in results))


@lru_cache(maxsize=32)
def _each(
    base: bytes, ours: bytes, hunks: tuple[Hunk, ...]
) -> tuple[Alignment, tuple[Placed | None, ...], tuple[HunkResult, ...]]:
    """Return where each hunk is in the old file, and goes in the new one by itself.

    What was found last is kept: a patch is ported again when some of its hunks turn out to be suspect.
    """
    old = lines_of(base)
    alignment = align(old, lines_of(ours))
    others, located = _only_others(hunks), list[Placed | None]()
    for number, (hunk, at, _) in enumerate(locate_all(old, hunks)):
        located.append(None if at is None else replace(split(hunk, number + 1, at), others=others[number]))
    results = [_port(alignment, placed) if placed else human("does not apply to the old tree") for placed in located]
    results = [_unmoved(result, hunk, hunks) for result, hunk in zip(results, hunks, strict=True)]
    return alignment, tuple(located), tuple(_once(results))


def _only_others(hunks: Sequence[Hunk]) -> list[frozenset[bytes]]:
    """Return for each hunk the lines, normalised, that other hunks add and it does not."""
    if len(hunks) > MOST_HUNKS:
        return [frozenset() for _ in hunks]
    added = [frozenset(map(norm, hunk.added)) for hunk in hunks]
    every = frozenset().union(*added) - {b""}
    return [every - own for own in added]


def _port(alignment: Alignment, placed: Placed) -> HunkResult:
    """Port one hunk at its place, or at the place its code moved to."""
    result = port_hunk(alignment, placed)
    if result.verdict is Verdict.CONFLICT:
        result = port_in_function(alignment, placed) or port_moved(alignment, placed) or result
    if result.verdict in {Verdict.DRIFTED, Verdict.CONFLICT}:
        changes = context_changes(alignment, placed)
        result = replace(result, evidence="; ".join(part for part in (result.evidence, changes) if part))
    return result


def _unmoved(result: HunkResult, hunk: Hunk, hunks: Sequence[Hunk]) -> HunkResult:
    """Leave a hunk to a human that removes what another one adds, if that code moved in the new file.

    The patch moves code, and so did upstream: where it is now may be where the patch wants it.
    """
    if result.method is not Method.MOVED_CODE or not result.edits:
        return result
    removed = {norm(line) for line in hunk.removed if line.strip()}
    added = {norm(line) for other in hunks if other is not hunk for line in other.added}
    if removed and removed <= added:
        return human("the patch moves this code, which has moved in the new file")
    return result


def _once(results: Sequence[HunkResult]) -> list[HunkResult]:
    """Leave hunks to a human that are upstream by the words of lines which are another hunk's change as well.

    A patch may add the same lines in several places, and upstream may have only some of them.
    """
    final = list(results)
    for number, result in enumerate(results):
        others = [other.there for other in results if other is not result]
        if result.alike and result.verdict is Verdict.UPSTREAM and any(set(result.there) & set(o) for o in others):
            why = f"{result.evidence}; but so is another hunk that adds the same: it is uncertain which"
            final[number] = replace(human(why), method=Method.UPSTREAM)
    return final


def _apart(results: list[HunkResult]) -> list[HunkResult]:
    """Leave hunks to a human that would change each other's lines."""
    taken: list[tuple[int, int, int]] = []
    clash: set[int] = set()
    for number, result in enumerate(results):
        for edit in result.edits:
            for start, end, other in taken:
                touches = edit.start < end and start < edit.end
                if other != number and (touches or edit.start == start):
                    clash |= {number, other}
            taken.append((edit.start, edit.end, number))
    return [human("would overlap another hunk") if n in clash else r for n, r in enumerate(results)]


def _conflicts(
    alignment: Alignment, located: Sequence[Placed | None], results: list[HunkResult]
) -> tuple[list[tuple[Region, list[Placed]]], list[HunkResult]]:
    """Return the regions to mark; hunks placed inside one are left to the human as well."""
    final = list(results)
    while True:
        pairs = zip(located, final, strict=True)
        open_ones = [placed for placed, result in pairs if placed and result.verdict is Verdict.CONFLICT]
        joined = merged([(conflict_of(alignment, placed), placed) for placed in open_ones])
        inside = [
            number
            for number, result in enumerate(final)
            for edit in result.edits
            for area, _ in joined
            if edit.start <= area.new[1] and area.new[0] <= edit.end
        ]
        if not inside:
            return joined, final
        for number in inside:
            final[number] = human("is inside the lines of a conflicting hunk")


def _line(result: HunkResult, edits: Sequence[Edit]) -> int:
    if result.at < 0:
        return 0
    shift = sum(len(edit.lines) - (edit.end - edit.start) for edit in edits if edit.start < result.at)
    return result.at + shift + 1


_BY_ALIGNMENT = {Method.EXACT, Method.OFFSET, Method.MERGE}


def crosscheck(
    alignment: Alignment, located: Sequence[Placed | None], results: Sequence[HunkResult]
) -> list[HunkResult]:
    """Return `results`; those that git merges cleanly to something else are left to a human.

    A conflict in git's merge is accepted: git finds one wherever adjacent lines changed.
    """
    pairs = [
        (placed, result)
        for placed, result in zip(located, results, strict=True)
        if placed and result.edits and result.method in _BY_ALIGNMENT and result.verdict is not Verdict.PARTLY
    ]
    if alignment.base == alignment.ours or not pairs or _merges(alignment, pairs):
        return list(results)
    final = list(results)
    for placed, result in pairs:
        if _merges(alignment, [(placed, result)]) is False:
            final[placed.number - 1] = human(f"git's three-way merge puts it elsewhere; {result.evidence}")
    return final


def _merges(alignment: Alignment, pairs: Sequence[tuple[Placed, HunkResult]]) -> bool | None:
    """Return whether `git merge-file` makes of hunks what their results say; None where it finds a conflict."""
    theirs = apply_edits(alignment.base, [group for placed, _ in pairs for group in placed.groups])
    with tempfile.TemporaryDirectory(prefix="multiworld-merge-") as folder:
        for name, lines in (("ours", alignment.ours), ("base", alignment.base), ("theirs", theirs)):
            Path(folder, name).write_bytes(b"".join(lines))
        done = Git(Path(folder)).call("merge-file", "-p", "--diff3", "ours", "base", "theirs")
    if done.returncode:
        return None
    return done.stdout == b"".join(apply_edits(alignment.ours, [edit for _, result in pairs for edit in result.edits]))
