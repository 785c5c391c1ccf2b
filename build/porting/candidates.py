"""Check that the place where a group went is the only possible one."""

from __future__ import annotations

from collections.abc import Sequence

from build.porting.alignment import Alignment
from build.porting.groups import Placed
from build.porting.lines import distinctive, headings, norm, occurrences, similarity, weight, words

#: Number of lines around a hunk that are compared to distinguish places.
REACH = 12
#: Number of lines above and below a place that are close by.
CLOSE = 3
#: Number of words of a single line in a place that say enough.
TELLING = 4
#: Share of the distinctive lines around a place that must be kept for the place to be certain by itself.
STRONG = 0.75


def other_candidates(alignment: Alignment, placed: Placed, at: int) -> list[int]:
    """Return the other new lines (from 0) where a hunk's old side fits as well as at `at`.

    A place that an equal part of the old file became is not a candidate, and none that `between` rules out.
    """
    old = list(alignment.base_norm[placed.start : placed.end])
    if not any(old):
        return []
    _, near = between(alignment, placed.start, placed.end)
    places = occurrences(alignment.ours_norm[near.start : near.stop], old)
    return [p for p in (near.start + n for n in places) if p != at and not _taken(alignment, p, len(old))]


def between(alignment: Alignment, start: int, end: int) -> tuple[range, range]:
    """Return the old and the new lines around `start..end`, up to the nearest lines that each file has once.

    What these became is certain, so equal lines beyond them are of other blocks: blocks keep their order.
    """
    above, below, size = start, end, len(alignment.base)
    while above > 0 and not _pinned(alignment, above - 1):
        above -= 1
    while below < size and not _pinned(alignment, below):
        below += 1
    first = alignment.to[above - 1] + 1 if above else 0
    return range(above, below), range(first, alignment.to[below] if below < size else len(alignment.ours))


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
