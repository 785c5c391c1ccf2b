"""Find the lines that a patch adds among those that only the new file has, though names, quotes or wrapping changed.

Code is compared by the words its names are made of: `Curl_dyn_init(&buf)` and `curlx_dyn_init(&buf)` share three of
four. Only lines that the old file did not have count: what was there before is not the change.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from build.porting.alignment import Alignment
from build.porting.groups import Group
from build.porting.lines import norm, words

#: Lines around a place in the new file that belong to it.
NEAR = 40
#: Share of the words that must be there, in order, by how many words there are; fewer than the least say too little.
SHARES = ((20, 0.75), (12, 0.8), (6, 0.85), (4, 1.0))
#: The same far from the place, where only much code that is nearly the same says something.
FAR_WORDS, FAR_SHARE = 12, 0.85
#: Share from which the change counts as upstream's; with less, a person should look.
SURE = 0.9
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


def added_only(alignment: Alignment, groups: Sequence[Group]) -> list[bytes]:
    """Return the lines that groups add and do not remove as well: what is only re-indented is not added."""
    removed = Counter(norm(line) for group in groups for line in group.removed(alignment.base))
    found = []
    for line in (line for group in groups for line in group.added):
        if removed[norm(line)]:
            removed[norm(line)] -= 1
        elif line.strip():
            found.append(line)
    return found


def removed_only(alignment: Alignment, groups: Sequence[Group]) -> list[int]:
    """Return the old lines that groups remove and do not add again."""
    added = Counter(norm(line) for group in groups for line in group.added)
    found = []
    for n in (n for group in groups for n in range(group.start, group.end)):
        if added[alignment.base_norm[n]]:
            added[alignment.base_norm[n]] -= 1
        elif alignment.base_norm[n]:
            found.append(n)
    return found


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The words to be found in order, the share of them that must be, and those that the change brings in."""

    words: list[bytes]
    share: float
    fresh: Counter[bytes]

    def at_least(self, share: float) -> _Wanted:
        return replace(self, share=max(share, self.share))


def echo(alignment: Alignment, groups: Sequence[Group]) -> Echo | None:
    """Return where the new file has what `groups` add: the best place near by, else the best one far away."""
    added = words(added_only(alignment, groups))
    fresh = Counter(added) - Counter(words(alignment.base[n] for n in removed_only(alignment, groups)))
    place = _place(alignment, groups)
    if not fresh or len(added) < SHARES[-1][0]:
        return _same_lines(alignment, groups, place)
    wanted = _Wanted(added, next(share for least, share in SHARES if len(added) >= least), fresh)
    found = _best(alignment, wanted, place)
    if found is None and len(added) >= FAR_WORDS:
        found = _best(alignment, wanted.at_least(FAR_SHARE), range(len(alignment.ours)))
        return None if found is None else replace(found, near=False)
    return found


def _place(alignment: Alignment, groups: Sequence[Group]) -> range:
    """Return the new lines around the place where the groups belong."""
    first, last = alignment.before(groups[0].start)[1], alignment.after(groups[-1].end)[1]
    if last < first:
        first, last = last, first
    return range(max(0, first - NEAR), min(len(alignment.ours), last + NEAR))


def _same_lines(alignment: Alignment, groups: Sequence[Group], place: range) -> Echo | None:
    """Return where a few short lines stand, all of them unchanged, within the lines next to their place."""
    wanted = [norm(line) for line in added_only(alignment, groups)]
    if not any(re.search(rb"\w\w", line) for line in wanted):
        return None
    near = range(place.start + NEAR - 5, max(place.stop - NEAR + 5, 0))
    for at in near:
        new = 0 <= at < len(alignment.ours) and alignment.back[at] < 0
        if new and list(alignment.ours_norm[at : at + len(wanted)]) == wanted:
            return Echo(at, at + len(wanted), 1.0, near=True)
    return None


def _best(alignment: Alignment, wanted: _Wanted, place: range) -> Echo | None:
    """Return the window of new lines that has the largest share of the wanted words, in their order."""
    flat = [(word, at) for word, at in alignment.fresh_words if place.start <= at < place.stop]
    size = int(SPREAD * len(wanted.words)) + 2
    best: Echo | None = None
    for start in _likely(flat, wanted.words, size, wanted.share):
        window = flat[start : start + size]
        known = (Counter(word for word, _ in window) & wanted.fresh).total()
        found = _matched(wanted.words, window)
        if found is None or found.share < wanted.share or known < wanted.share * wanted.fresh.total():
            continue
        if best is None or found.share > best.share:
            best = found
    return best


def _matched(wanted: Sequence[bytes], window: Sequence[tuple[bytes, int]]) -> Echo | None:
    """Return which lines of a window have the words, and the share of those that are in order."""
    matcher = SequenceMatcher(None, wanted, [word for word, _ in window], autojunk=False)
    blocks = [block for block in matcher.get_matching_blocks() if block.size]
    if not blocks:
        return None
    first, last = window[blocks[0].b][1], window[blocks[-1].b + blocks[-1].size - 1][1]
    return Echo(first, last + 1, sum(block.size for block in blocks) / len(wanted), near=True)


def _likely(flat: Sequence[tuple[bytes, int]], wanted: Sequence[bytes], size: int, share: float) -> list[int]:
    """Return where windows begin that have enough of the words in any order; of neighbours only the best."""
    need = Counter(wanted)
    have: Counter[bytes] = Counter()
    hits, best, found = 0, 0, list[int]()
    for at, (word, _) in enumerate(flat):
        have[word] += 1
        hits += have[word] <= need[word]
        if at >= size:
            old = flat[at - size][0]
            hits -= have[old] <= need[old]
            have[old] -= 1
        start = max(0, at - size + 1)
        if hits < share * len(wanted):
            best = 0
        elif hits > best:
            if found and start - found[-1] < size and best:
                found[-1] = start
            else:
                found.append(start)
            best = hits
    return found
