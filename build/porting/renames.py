"""Follow upstream's renames: a patch must not bring an old name back."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import takewhile
from os.path import commonprefix
from typing import cast

from build.porting.alignment import Alignment
from build.porting.groups import Placed
from build.porting.hunks import HunkResult, human
from build.porting.lookup import Lookup
from build.porting.names import declared, everyones, names, shape, used
from build.series.verdicts import Verdict

#: Least likeness of two names, 0 to 1, for one changed line to show that one became the other.
ALIKE = 0.5
#: Number of changed lines that show it for names that are not alike.
ENOUGH = 2
#: Least length of a common beginning of names, such as `Curl_dyn_`, that was renamed as a whole.
PREFIX = 4


@dataclass(frozen=True, slots=True)
class Renames:
    """What upstream renamed in a file.

    Attributes:
        names: old names with the new ones.
        prefixes: beginnings that several old names share, with the new ones; no name of the new file has an old one.
        known: all names of the new file.
    """

    names: dict[bytes, bytes]
    prefixes: dict[bytes, bytes]
    known: Lookup

    def of(self, name: bytes) -> bytes | None:
        """Return the new name of a name that the new file lacks; None if it was not renamed."""
        if name in self.known:
            return None
        for old, new in self.prefixes.items():
            if name.startswith(old) and name not in self.names:
                return new + name[len(old) :]
        return self.names.get(name)


def find(alignment: Alignment) -> Renames:
    """Find renames in the lines that differ between the two files in names alone."""
    before, known = alignment.base_names, alignment.ours_names
    votes: dict[bytes, Counter[bytes]] = {}
    for old, new in _changed_names(alignment):
        if not (everyones(old) or everyones(new)) and old not in known and new not in before:
            votes.setdefault(old, Counter())[new] += 1
    found = {old: elected for old, counts in votes.items() if (elected := _elected(old, counts))}
    return Renames(found, _prefixes(found, known), known)


def _elected(old: bytes, counts: Counter[bytes]) -> bytes | None:
    (new, most), *others = counts.most_common(2)
    if others and others[0][1] * 2 > most:
        return None
    return new if most >= ENOUGH or SequenceMatcher(None, old, new).ratio() >= ALIKE else None


def _changed_names(alignment: Alignment) -> Iterator[tuple[bytes, bytes]]:
    """Yield the names that differ between an old line and the new one of the same shape in its place."""
    for old, new in _blocks(alignment):
        shapes: dict[tuple[bytes, ...], list[bytes]] = {}
        for line in new:
            shapes.setdefault(shape(line), []).append(line)
        for line in old:
            form = shape(line)
            if len(form) > 1 and (same := shapes.get(form)):
                yield from _differing(line, same.pop(0))


def _differing(old: bytes, new: bytes) -> set[tuple[bytes, bytes]]:
    """Return the names that differ; none if most of them do, since then it is another line."""
    pairs = list(zip(names(old), names(new), strict=True))
    differing = {pair for pair in pairs if pair[0] != pair[1]}
    return differing if len(differing) == 1 or 2 * len(differing) <= len(set(pairs)) else set()


def _blocks(alignment: Alignment) -> Iterator[tuple[Sequence[bytes], Sequence[bytes]]]:
    """Yield the old and the new lines between two lines that both files share."""
    last_old, last_new = -1, -1
    for old, new in [*((n, image) for n, image in enumerate(alignment.to) if image >= 0), _ends(alignment)]:
        if old > last_old + 1 and new > last_new + 1:
            yield alignment.base[last_old + 1 : old], alignment.ours[last_new + 1 : new]
        last_old, last_new = old, new


def _ends(alignment: Alignment) -> tuple[int, int]:
    return len(alignment.base), len(alignment.ours)


def _prefixes(found: dict[bytes, bytes], known: Lookup) -> dict[bytes, bytes]:
    """Return the beginnings that at least two names lost in the same way."""
    heads: dict[tuple[bytes, bytes], list[bytes]] = {}
    for old, new in found.items():
        tail = _shared([old[::-1], new[::-1]])[::-1]
        heads.setdefault((old[: len(old) - len(tail)], new[: len(new) - len(tail)]), []).append(tail)
    result: dict[bytes, bytes] = {}
    for (old, new), tails in heads.items():
        shared = _shared(tails)
        if len(tails) > 1 and len(old + shared) >= PREFIX and not known.begins(old + shared):
            result[old + shared] = new + shared
    return result


def _shared(words: Sequence[bytes]) -> bytes:
    return cast("bytes", commonprefix(words))  # noqa: RUF071 - of names, not of paths


def follow(
    alignment: Alignment, located: Sequence[Placed | None], results: Sequence[HunkResult]
) -> tuple[list[Placed | None], list[HunkResult]]:
    """Leave hunks whose added lines use an old name to a human; the conflict proposes the lines with the new name."""
    own = declared(line for placed in located if placed for group in placed.groups for line in group.added)
    wanted = {
        number: _used(placed) - own
        for number, (placed, result) in enumerate(zip(located, results, strict=True))
        if placed and result.verdict is not Verdict.UPSTREAM
    }
    hunks, final = list(located), list(results)
    if alignment.base == alignment.ours or not any(_lost(alignment, n) for n in set[bytes]().union(*wanted.values())):
        return hunks, final
    renames = find(alignment)
    for number, every in wanted.items():
        found = {name: new for name in sorted(every) if (new := renames.of(name))}
        if found and (placed := located[number]):
            hunks[number], final[number] = _followed(found, placed, results[number])
    return hunks, final


def _used(placed: Placed) -> set[bytes]:
    """Return the names that a hunk's added lines use; lines that it removes as well are not added."""
    removed = set(placed.hunk.removed)
    return used(line for group in placed.groups for line in group.added if line not in removed)


def _lost(alignment: Alignment, name: bytes) -> bool:
    """Whether only the old file has a name, or others that begin like it: no other name can have been renamed."""
    before, now = alignment.base_names, alignment.ours_names
    if name in now:
        return False
    heads = (name[:size] for size in range(PREFIX, len(name) + 1))
    return name in before or any(not now.begins(head) for head in takewhile(before.begins, heads))


def _followed(found: dict[bytes, bytes], placed: Placed, result: HunkResult) -> tuple[Placed, HunkResult]:
    said = ", ".join(f"`{old.decode()}` is `{new.decode()}` now" for old, new in found.items())
    why = f"upstream renamed what the added lines use: {said}; the new name is proposed"
    evidence = "; ".join(part for part in (why, result.evidence) if part)
    groups = tuple(
        replace(group, added=tuple(_renamed(line, found) for line in group.added)) for group in placed.groups
    )
    return replace(placed, groups=groups), human(evidence)


def _renamed(line: bytes, found: dict[bytes, bytes]) -> bytes:
    pattern = rb"\b(?:" + b"|".join(map(re.escape, found)) + rb")\b"
    return re.sub(pattern, lambda match: found[match[0]], line)
