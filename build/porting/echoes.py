"""Find the lines that a patch adds among those that only the new file has, though names, quotes or wrapping changed.

Code is compared by the words its names are made of: `Curl_dyn_init(&buf)` and `curlx_dyn_init(&buf)` share three of
four. Only lines that the old file did not have count: what was there before is not the change.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import partial
from operator import itemgetter

from build.porting.alignment import Alignment
from build.porting.groups import Edit, Placed
from build.porting.lines import end_of, norm, words
from build.series.inspect import occurrences

#: The name in the first line of a function at the margin, or of any in Python.
_DEFINITION = re.compile(rb"(?:\w[\w\s*&:<>]*?|\s*(?:async\s+)?def\s+)?\b(\w+)\s*\(")
_CALL = re.compile(rb"([A-Za-z_]\w+)[ \t]*\(")
#: Lines around a place in the new file that belong to it.
NEAR = 40
#: The same for a few short lines, which may be in many places.
BESIDE = 5
#: Share of the words that must be there, in order, by how many words there are; fewer than the least say too little.
SHARES = ((20, 0.75), (12, 0.8), (6, 0.85), (4, 1.0))
#: The same far from the place, where only much code that is nearly the same says something.
FAR_WORDS, FAR_SHARE = 12, 0.85
#: The same in a function that is called near the place, where arguments and ways out have other names.
CALLED_SHARE = 0.6
#: Share from which the change counts as upstream's; with less, a person should look.
SURE = 0.9
#: Words of a change that are looked for, and characters of a line in which a definition is: the time is bounded.
MOST_WORDS, LONGEST = 1000, 400
#: Words of the new file that may stand between those of the patch, as a share of them.
SPREAD = 1.4


@dataclass(frozen=True, slots=True)
class Echo:
    """Lines `start..end` of the new file that have the added code, `share` of its words; `near` its place or not."""

    start: int
    end: int
    share: float
    near: bool

    @property
    def where(self) -> str:
        return f"line {self.start + 1}" if self.end - self.start < 2 else f"lines {self.start + 1} to {self.end}"


def added_only(alignment: Alignment, groups: Sequence[Edit]) -> list[bytes]:
    """Return the lines that groups add and do not remove as well: what is only re-indented is not added."""
    removed = Counter(norm(line) for group in groups for line in group.removed(alignment.base))
    found = []
    for line in (line for group in groups for line in group.lines):
        if removed[norm(line)]:
            removed[norm(line)] -= 1
        elif line.strip():
            found.append(line)
    return found


def removed_only(alignment: Alignment, groups: Sequence[Edit]) -> list[int]:
    """Return the old lines that groups remove and do not add again."""
    added = Counter(norm(line) for group in groups for line in group.lines)
    found = []
    for n in (n for group in groups for n in range(group.start, group.end)):
        if added[alignment.base_norm[n]]:
            added[alignment.base_norm[n]] -= 1
        elif alignment.base_norm[n]:
            found.append(n)
    return found


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The words that are looked for.

    Attributes:
        words: the words to be found in order, and `share` how much of them.
        fresh: those that the change brings in, of which as much must be there.
        novel: those that the old file has nowhere: at least half of them must be there.
        others: lines that only other hunks add: they are not this one's change.
    """

    words: list[bytes]
    share: float
    fresh: Counter[bytes]
    novel: frozenset[bytes]
    others: frozenset[bytes]


def echo(alignment: Alignment, placed: Placed, *, far: bool = True) -> Echo | None:
    """Return where the new file has what a hunk adds: the best place near by, else with `far` the best of the file."""
    groups = placed.groups
    lines = added_only(alignment, groups)
    added = words(lines)[:MOST_WORDS]
    fresh = Counter(added) - Counter(words(alignment.base[n] for n in removed_only(alignment, groups)))
    # The new lines between those that both files have above and below.
    ends = alignment.before(groups[0].start)[1], alignment.after(groups[-1].end)[1]
    gap = range(max(0, min(ends)), max(ends) + 1)
    if not fresh or len(added) < SHARES[-1][0]:
        return _same_lines(alignment, lines, gap)
    share = next(share for least, share in SHARES if len(added) >= least)
    if (Counter(added) & alignment.fresh_counts).total() < CALLED_SHARE * len(added):
        return None  # the new file has too few of the words, wherever they are
    place = range(max(0, gap.start - NEAR), min(len(alignment.ours), gap.stop + NEAR))
    novel = frozenset(word for word in fresh if word not in alignment.vocabulary)
    wanted = _Wanted(added, share, fresh, novel, placed.others)
    found = _best(alignment, wanted, place, gap)
    if found is None and far and len(added) >= FAR_WORDS:
        found = _best(alignment, replace(wanted, share=max(FAR_SHARE, share)), range(len(alignment.ours)), gap)
        found = found or _in_called(alignment, replace(wanted, share=CALLED_SHARE), place, gap)
        return None if found is None else replace(found, near=False)
    return found


def _in_called(alignment: Alignment, wanted: _Wanted, place: range, gap: range) -> Echo | None:
    """Return where functions that the lines `place` of the new file call have what the old file had nowhere."""
    near = [line[:LONGEST] for line in alignment.ours[place.start : place.stop] if wanted.novel]
    calls = {name for line in near if not _DEFINITION.match(line) for name in _CALL.findall(line)}
    for at, line in enumerate(alignment.ours if calls else ()):
        match = _DEFINITION.match(line[:LONGEST])
        defines = match and match[1] in calls and not line.rstrip().endswith(b";")
        if defines and (found := _best(alignment, wanted, range(at, end_of(alignment.ours, at)), gap)):
            return found
    return None


def _same_lines(alignment: Alignment, lines: Sequence[bytes], gap: range) -> Echo | None:
    """Return where a few short lines stand, all of them unchanged.

    With a word that the old file has nowhere they may be anywhere, else only at their place or next to it.
    """
    wanted = [norm(line) for line in lines]
    if not any(re.search(rb"\w\w", line) for line in wanted):
        return None
    beside = range(max(0, gap.start - BESIDE), min(len(alignment.ours), gap.stop + BESIDE))
    novel = any(word not in alignment.vocabulary for word in words(wanted))
    for at in sorted(occurrences(alignment.ours_norm, wanted), key=partial(_distance, gap)):
        if min(alignment.back[at : at + len(wanted)]) < 0 and (novel or at in beside):
            return Echo(at, at + len(wanted), 1.0, near=at in beside)
    return None


def _best(alignment: Alignment, wanted: _Wanted, place: range, gap: range) -> Echo | None:
    """Return the window of new lines that has the largest share of the wanted words, in their order.

    Of several with the same share it is the one nearest to `gap`.
    """
    every = alignment.fresh_words
    first, last = (bisect_left(every, at, key=itemgetter(1)) for at in (place.start, place.stop))
    flat = [item for item in every[first:last] if alignment.ours_norm[item[1]] not in wanted.others]
    size = int(SPREAD * len(wanted.words)) + 2
    best: Echo | None = None
    for start in _likely(flat, wanted.words, size, wanted.share):
        window = flat[start : start + size]
        if not _has_news(wanted, Counter(word for word, _ in window)):
            continue
        found = _matched(wanted.words, window)
        if found is None or found.share < wanted.share:
            continue
        if best is None or (found.share, -_distance(gap, found.start)) > (best.share, -_distance(gap, best.start)):
            best = found
    return best


def _distance(gap: range, at: int) -> int:
    return max(gap.start - at, at - gap.stop + 1, 0)


def _has_news(wanted: _Wanted, window: Counter[bytes]) -> bool:
    """Return whether a window has what the change brings in, and not only what was around it before."""
    known = (window & wanted.fresh).total()
    novel = sum(word in window for word in wanted.novel)
    return known >= wanted.share * wanted.fresh.total() and novel >= len(wanted.novel) / 2


def _matched(wanted: Sequence[bytes], window: Sequence[tuple[bytes, int]]) -> Echo | None:
    """Return which lines of a window have the words, and the share of those that are in order."""
    matcher = SequenceMatcher(None, wanted, [word for word, _ in window], autojunk=False)
    blocks = [block for block in matcher.get_matching_blocks() if block.size]
    if not blocks:
        return None
    first, last = window[blocks[0].b][1], window[blocks[-1].b + blocks[-1].size - 1][1]
    return Echo(first, last + 1, sum(block.size for block in blocks) / len(wanted), near=True)


def _likely(flat: Sequence[tuple[bytes, int]], wanted: Sequence[bytes], size: int, share: float) -> list[int]:
    """Return where windows begin that have enough of the words, in any order: of neighbours the first and last best."""
    need, have = Counter(wanted), Counter[bytes]()
    if (need & Counter(word for word, _ in flat)).total() < share * len(wanted):
        return []
    hits, best, found = 0, 0, list[int]()
    for at, (word, _) in enumerate(flat):
        if word in need:
            have[word] += 1
            hits += have[word] <= need[word]
        if at >= size and (old := flat[at - size][0]) in need:
            hits -= have[old] <= need[old]
            have[old] -= 1
        start = max(0, at - size + 1)
        if hits < share * len(wanted):
            best = 0
        elif hits > best:
            found[-2 if best else len(found) :] = [start, start]
            best = hits
        elif hits == best:
            found[-1] = start
    return list(dict.fromkeys(found))
