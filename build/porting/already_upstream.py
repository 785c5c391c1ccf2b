"""Recognise a change that the new file already has, whole or in part, reformatted or among other changes."""

from __future__ import annotations

from collections.abc import Sequence

from build.porting.alignment import Alignment
from build.porting.echoes import NEAR
from build.porting.groups import Edit
from build.porting.lines import distinctive, norm, similarity, tokens
from build.porting.placement import HunkResult, human, recognisable
from build.series.inspect import occurrences
from build.series.model import Method, Verdict

#: Least similarity of a new line to one that is missing: it may be that line in another form.
ALIKE = 0.6
#: Lines below a change, of those that both files share, up to which the code is compared.
SHARED = 4


def look(alignment: Alignment, group: Edit) -> HunkResult:
    """Look for the change between the lines around it that both files share.

    The verdict is UPSTREAM, PARTLY (with the edit that completes it), or CONFLICT.
    """
    before, after = alignment.before(group.start), alignment.after(group.end)
    if after[1] <= before[1]:
        return human("the lines around it were reordered")
    if (whole := _whole(alignment, group, before)) is not None:
        return whole
    new = alignment.ours[before[1] + 1 : after[1]]
    head = alignment.base[before[0] + 1 : group.start]
    tail = alignment.base[group.end : after[0]]
    at = before[1] + 1
    found = _inside(new, group, alignment.base)
    if found is not None:
        return _upstream(at + found, f"{_where(at + found, len(group.lines), True)}, among other changes")
    return _partly(alignment, group, (at, after[1]), head, tail)


def _whole(alignment: Alignment, group: Edit, before: tuple[int, int]) -> HunkResult | None:
    """Return the result of a change that the new file has with nothing else around it.

    The nearest line below that both files share may be the wrong one of several brackets: some more are tried.
    """
    if only_moved(alignment, group):
        return None
    head, at, below = alignment.base[before[0] + 1 : group.start], before[1] + 1, group.end
    for _ in range(SHARED):
        after = alignment.after(below)
        old, new = alignment.base[before[0] + 1 : after[0]], alignment.ours[at : after[1]]
        wanted = [*head, *group.lines, *alignment.base[group.end : after[0]]]
        if tokens(new) == tokens(wanted) != tokens(old):
            same = [norm(line) for line in new] == [norm(line) for line in wanted]
            return _upstream(at, _where(at, len(new), same))
        if after[0] >= len(alignment.base):
            break
        below = after[0] + 1
    return None


def _upstream(at: int, evidence: str) -> HunkResult:
    return HunkResult(Verdict.UPSTREAM, Method.UPSTREAM, evidence, at)


def _where(at: int, count: int, same: bool) -> str:
    lines = f"line {at + 1}" if count < 2 else f"lines {at + 1} to {at + count}"
    return f"already at {lines} of the new file" + ("" if same else ", formatted differently")


def only_moved(alignment: Alignment, group: Edit) -> bool:
    """Return whether the removed lines only moved: they still have to be removed."""
    removed = [norm(line) for line in group.removed(alignment.base)]
    if group.lines or not recognisable(removed):
        return False
    return any(alignment.back[at] < 0 for at in occurrences(alignment.ours_norm, removed))


def _inside(new: Sequence[bytes], group: Edit, base: Sequence[bytes]) -> int | None:
    """Return the line of `new` where the added code begins; None unless it is there once, without the removed code."""
    added = tokens(group.lines)
    if not recognisable(group.lines):
        return None
    flat: list[bytes] = []
    owner: list[int] = []
    for number, line in enumerate(new):
        found = tokens([line])
        flat += found
        owner += [number] * len(found)
    places = occurrences(flat, added)
    if len(places) != 1:
        return None
    removed = tokens(group.removed(base))
    rest = [*flat[: places[0]], b"\0", *flat[places[0] + len(added) :]]
    if len(removed) >= 3 and occurrences(rest, removed):
        return None
    return owner[places[0]]


def _partly(
    alignment: Alignment, group: Edit, span: tuple[int, int], head: Sequence[bytes], tail: Sequence[bytes]
) -> HunkResult:
    """Return the edit that completes a change which the new file has in part, without other lines in between."""
    new = [norm(line) for line in alignment.ours[span[0] : span[1]]]
    first, last = len(head), len(new) - len(tail)
    if first > last or new[:first] != [norm(x) for x in head] or new[last:] != [norm(x) for x in tail]:
        return human("the lines it changes were changed")
    middle = new[first:last]
    added = [norm(line) for line in group.lines]
    removed = [norm(line) for line in group.removed(alignment.base)]
    has = [line for line in middle if line in added and line not in removed]
    if not any(map(distinctive, has)) or not _woven(middle, added, removed):
        return human("the lines it changes were changed")
    edit = Edit(span[0] + first, span[0] + last, group.lines)
    if list(edit.lines) == list(alignment.ours[edit.start : edit.end]):
        return _upstream(edit.start, _where(edit.start, last - first, True))
    missing = [line for line in added if line not in has]
    if not any(map(distinctive, missing)) or _stands_near(alignment, missing, (edit.start, edit.end)):
        return human(f"upstream has {len(has)} of the {len(added)} added lines, and perhaps the others in another form")
    note = f"{len(has)} of {len(added)} added lines were at line {edit.start + 1} already"
    if len(has) == len(added):  # what is missing is not a line that is added
        note = f"what it adds was at line {edit.start + 1} already; what it removes was still there"
    return HunkResult(Verdict.PARTLY, Method.MERGE, note, edit.start, (edit,))


def _stands_near(alignment: Alignment, lines: Sequence[bytes], span: tuple[int, int]) -> bool:
    """Return whether new lines close to `span` are like one of `lines`."""
    near = range(max(0, span[0] - NEAR), min(len(alignment.ours), span[1] + NEAR))
    fresh = [alignment.ours[n] for n in near if alignment.back[n] < 0 and not span[0] <= n < span[1]]
    return any(similarity([line], [other]) >= ALIKE for line in lines if distinctive(line) for other in fresh)


def _woven(middle: Sequence[bytes], added: Sequence[bytes], removed: Sequence[bytes]) -> bool:
    """Return whether `middle` has only lines of `added` and `removed`, each in its own order."""
    left = {(0, 0)}
    for line in middle:
        reach: set[tuple[int, int]] = set()
        for a, r in left:
            reach |= {(n + 1, r) for n in range(a, len(added)) if added[n] == line}
            reach |= {(a, n + 1) for n in range(r, len(removed)) if removed[n] == line}
        left = reach
        if not left:
            return False
    return True
