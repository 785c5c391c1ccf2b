"""Find the place of one group of a hunk in the new file, check that it is the only one, and fit its lines in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from build.porting.alignment import Alignment
from build.porting.groups import Edit, Placed
from build.porting.lines import distinctive, headings, indent, norm, similarity, weight, words
from build.series.inspect import occurrences
from build.series.model import Method, Verdict

#: Number of lines around a hunk that are compared to distinguish places.
REACH = 12
#: Number of lines above and below a place that are close by.
CLOSE = 3
#: Number of words of a single line in a place that say enough.
TELLING = 4
#: Share of the distinctive lines around a place that must be kept for the place to be certain by itself.
STRONG = 0.75
#: Least similarity of two versions of a line to count as one line that was edited.
SAME_LINE = 0.5
#: Least number of lines that say that an insertion repeats what is next to it; entries of lists are often alike.
REPEATED = 3


def other_candidates(alignment: Alignment, placed: Placed, at: int) -> list[int]:
    """Return the other new lines (from 0) where a hunk's old side fits as well as at `at`.

    A place that an equal part of the old file became is not a candidate, and none that `between` rules out.
    """
    old = list(alignment.base_norm[placed.start : placed.end])
    if not any(old):
        return []
    near = between(alignment, placed.start, placed.end)
    places = occurrences(alignment.ours_norm[near.start : near.stop], old)
    return [p for p in (near.start + n for n in places) if p != at and not _taken(alignment, p, len(old))]


def between(alignment: Alignment, start: int, end: int) -> range:
    """Return the new lines around the old ones `start..end`, up to the nearest lines that each file has once.

    What these became is certain, so equal lines beyond them are of other blocks: blocks keep their order.
    """
    above, below, size = start, end, len(alignment.base)
    while above > 0 and not _pinned(alignment, above - 1):
        above -= 1
    while below < size and not _pinned(alignment, below):
        below += 1
    first = alignment.to[above - 1] + 1 if above else 0
    return range(first, alignment.to[below] if below < size else len(alignment.ours))


def _pinned(alignment: Alignment, at: int) -> bool:
    return alignment.to[at] >= 0 and alignment.base_norm[at] in alignment.once


def _taken(alignment: Alignment, at: int, size: int) -> bool:
    """Return whether the new lines `at..at+size` are aligned with one block of the old file."""
    origin = alignment.back[at]
    return origin >= 0 and all(alignment.back[at + n] == origin + n for n in range(size))


def same_function(alignment: Alignment, old_at: int, new_at: int) -> bool:
    """Return whether two places are in the same function, or in one that was only renamed."""
    old = [alignment.base_norm[n] for n in headings(alignment.base, old_at)]
    new = [alignment.ours_norm[n] for n in headings(alignment.ours, new_at)]
    # Lines that only one file has may be new conditions around the code, or a rewritten first line.
    kept = [line for line in old if line in alignment.ours_norm]
    known = [line for line in new if line in alignment.base_norm]
    if kept:
        return kept[-1] in known
    if known:
        return False
    if not old and not new:
        return True
    alike = bool(old) and bool(new) and similarity([old[-1]], [new[-1]]) >= 0.5
    return alike or support(alignment, old_at, old_at) >= STRONG


def support(alignment: Alignment, start: int, end: int) -> float:
    """Return the share of distinctive lines near `start..end` of the old file that the new file still has."""
    near = [*range(max(0, start - REACH), start), *range(end, min(len(alignment.base), end + REACH))]
    known = [n for n in near if distinctive(alignment.base[n])]
    if not known:
        return 1.0 if all(alignment.to[n] >= 0 for n in near) else 0.0
    # A kept line far from its neighbours does not count: it moved, or it is another line.
    images = sorted(alignment.to[n] for n in known if alignment.to[n] >= 0)
    middle = images[len(images) // 2] if images else 0
    close = [image for image in images if abs(image - middle) <= 4 * REACH]
    return len(close) / len(known)


def anchored(alignment: Alignment, old: tuple[int, int], new: tuple[int, int]) -> bool:
    """Return whether lines that each file has exactly once say that `old` became `new`: two, or a long one in it.

    Such a line is proof enough where there is no function to compare, or much of the code around was rewritten.
    """

    def firm(at: int, image: int) -> bool:
        if not 0 <= at < len(alignment.base) or alignment.to[at] != image:
            return False
        return alignment.base_norm[at] in alignment.once and distinctive(alignment.base[at])

    inside = [firm(old[0] + n, new[0] + n) for n in range(old[1] - old[0])]
    above = [firm(old[0] - n, new[0] - n) for n in range(1, CLOSE + 1)]
    below = [firm(old[1] + n, new[1] + n) for n in range(CLOSE)]
    long = [len(words([alignment.base[old[0] + n]])) >= TELLING for n, found in enumerate(inside) if found]
    return sum([*inside, *above, *below]) >= 2 or any(long)


def recognisable(lines: Sequence[bytes]) -> bool:
    return weight(lines) >= 2 or sum(len(norm(line)) for line in lines) >= 60


@dataclass(frozen=True, slots=True)
class HunkResult:
    """Where a hunk went in the new file.

    Attributes:
        verdict, method, evidence: as in `HunkVerdict`.
        at: first line (from 0) it touches there, -1 for none.
        edits: its edits of the new file; none if it is upstream or left to a human.
        offset: lines between where the patch says and where it went.
        there: the new lines that seem to be what it adds, empty if there are none; `alike` if their words say so, and
            not their place.
    """

    verdict: Verdict
    method: Method
    evidence: str = ""
    at: int = -1
    edits: tuple[Edit, ...] = ()
    offset: int = 0
    there: range = range(0)
    alike: bool = False


def human(evidence: str) -> HunkResult:
    return HunkResult(Verdict.CONFLICT, Method.HUMAN, evidence)


def place_group(alignment: Alignment, group: Edit) -> HunkResult:
    """Place one group by what its own lines and its neighbours became, without line numbers."""
    span, why = target(alignment, group)
    if span is None:
        return human(why)
    if why_not := stands(alignment, group):
        return human(why_not)
    try:
        lines, note = fit(group.lines, _pairs(alignment, group, span))
    except UnevenError:
        return human("the lines around it were indented in different ways")
    edit = Edit(*span, tuple(lines))
    evidence = "; ".join(part for part in (why, note) if part)
    return HunkResult(Verdict.DRIFTED, Method.MERGE, evidence, edit.start, (edit,))


def target(alignment: Alignment, group: Edit) -> tuple[tuple[int, int] | None, str]:
    """Return the new lines that the group replaces; None with the reason when that is uncertain."""
    if group.end > group.start:
        images = alignment.to[group.start : group.end]
        if min(images) < 0:
            return None, "the lines it replaces were changed or removed"
        if list(images) != list(range(images[0], images[0] + len(images))):
            return None, "other lines were put between the lines it replaces"
        return (images[0], images[-1] + 1), ""
    return _gap(alignment, group.start)


def _gap(alignment: Alignment, at: int) -> tuple[tuple[int, int] | None, str]:
    """Return the place of an insertion between the old lines `at - 1` and `at`."""
    size = len(alignment.base)
    above = -1 if at == 0 else alignment.to[at - 1]
    below = len(alignment.ours) if at == size else alignment.to[at]
    known_above, known_below = at == 0 or above >= 0, at == size or below >= 0
    if known_above and known_below:
        if below == above + 1:
            return (below, below), ""
        return None, "other lines were put in the same place"
    if known_above or known_below:
        return _next_to_edited(alignment, at, above if known_above else None)
    return None, "the lines around it were changed or removed"


def _next_to_edited(alignment: Alignment, at: int, above: int | None) -> tuple[tuple[int, int] | None, str]:
    """Return the place between a kept line and an edited one; the lines must pair one by one."""
    if above is not None:
        old = range(at, alignment.after(at)[0])
        new = range(above + 1, alignment.after(at)[1])
        gap, edited = above + 1, (at, above + 1)
    else:
        first_old, first_new = alignment.before(at)
        below = alignment.to[at] if at < len(alignment.base) else len(alignment.ours)
        old, new = range(first_old + 1, at), range(first_new + 1, below)
        gap, edited = below, (at - 1, below - 1)
    if len(old) != len(new) or not old:
        return None, "the line next to it was removed, or others were added there"
    was, now = alignment.base[edited[0]], alignment.ours[edited[1]]
    if similarity([was], [now]) < SAME_LINE:
        return None, "the line next to it was replaced"
    return (gap, gap), f"next to it {text(was)} became {text(now)}"


def text(line: bytes) -> str:
    return repr(norm(line)[:70].decode("utf-8", "replace"))


def _pairs(alignment: Alignment, group: Edit, span: tuple[int, int]) -> list[tuple[bytes, bytes]]:
    """Return the line pairs (old, new) that decide the indentation: replaced lines, else neighbours."""
    if group.end > group.start:
        pairs = zip(alignment.base[group.start : group.end], alignment.ours[span[0] : span[1]], strict=True)
        found = [pair for pair in pairs if pair[0].strip()]
        if found:
            return found
    near = []
    for step, limit in ((-1, -1), (1, len(alignment.base))):
        index = group.start - 1 if step < 0 else group.end
        while index != limit and (alignment.to[index] < 0 or not alignment.base[index].strip()):
            index += step
        if index != limit:
            near.append((alignment.base[index], alignment.ours[alignment.to[index]]))
    return near


def added_elsewhere(alignment: Alignment, group: Edit) -> list[int]:
    """Return where the new file has all added lines together, if the old file has them less often."""
    lines = [norm(line) for line in group.lines if line.strip()]
    if not lines or not recognisable(group.lines):
        return []
    found = _loosely(alignment.ours_norm, lines)
    return found if len(found) > len(_loosely(alignment.base_norm, lines)) else []


def stands(alignment: Alignment, group: Edit) -> str:
    """Return why a group would double lines, in words; empty if it would not."""
    if elsewhere := added_elsewhere(alignment, group):
        return f"the lines it adds are already at line {elsewhere[0] + 1} of the new file"
    if doubles(alignment, group):
        return "the lines it adds stand next to its place in the old file already, so that they would be there twice"
    return ""


def doubles(alignment: Alignment, group: Edit) -> bool:
    """Return whether an insertion repeats the lines above or below its place, where the change was made before."""
    lines = [norm(line) for line in group.lines if line.strip()]
    if group.end > group.start or len(lines) < REPEATED or not recognisable(group.lines):
        return False
    above = [line for line in alignment.base_norm[: group.start] if line][-len(lines) :]
    below = [line for line in alignment.base_norm[group.end :] if line][: len(lines)]
    return lines in (above, below)


def _loosely(lines: Sequence[bytes], needle: Sequence[bytes]) -> list[int]:
    """Return where the lines of `needle` are together, apart from blank ones."""
    numbers = [n for n, line in enumerate(lines) if line]
    return [numbers[at] for at in occurrences([lines[n] for n in numbers], needle)]


class UnevenError(Exception):
    """The lines around the place are not all indented by the same amount."""


def fit(added: Sequence[bytes], pairs: Iterable[tuple[bytes, bytes]]) -> tuple[list[bytes], str]:
    """Return added lines with the new file's indentation and line ends, and a note about what was changed.

    `pairs` are lines of the old file near the place, each with the line of the new file it became.

    Raises:
        UnevenError: the pairs do not agree on one change of indentation.
    """
    known = [(a, b) for a, b in pairs if a.strip() and not a.lstrip().startswith(b"#")]
    shifts = {_shift(indent(a), indent(b)) for a, b in known}
    if len(shifts) > 1 or None in shifts:
        raise UnevenError
    removed, extra = next((shift for shift in shifts if shift is not None), (b"", b""))
    dos = bool(known) and all(b.endswith(b"\r\n") and not a.endswith(b"\r\n") for a, b in known)
    lines = [_shifted(line, removed, extra) for line in added]
    notes = []
    if removed or extra:
        notes.append(f"re-indented: {_depth(extra)} deeper" if extra else f"re-indented: {_depth(removed)} less")
    if dos:
        lines = [line[:-1] + b"\r\n" if line.endswith(b"\n") else line for line in lines]
        notes.append("line ends as in the new file")
    return lines, ", ".join(notes)


def _depth(indentation: bytes) -> str:
    counts = ((indentation.count(b"\t"), "tab"), (indentation.count(b" "), "blank"))
    return " and ".join(f"{count} {name}{'s' if count > 1 else ''}" for count, name in counts if count)


def _shift(old: bytes, new: bytes) -> tuple[bytes, bytes] | None:
    """Return the prefix removed from and the prefix added to an indentation; None if it is neither."""
    if new.endswith(old):
        return b"", new[: len(new) - len(old)]
    if old.endswith(new):
        return old[: len(old) - len(new)], b""
    return None


def _shifted(line: bytes, removed: bytes, extra: bytes) -> bytes:
    if not line.strip() or (line.startswith(b"#") and not removed):
        return line
    if removed and not line.startswith(removed):
        raise UnevenError
    return extra + line[len(removed) :]
