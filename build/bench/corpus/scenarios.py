"""The scenarios: what upstream does where the patch is, and the right verdicts for it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from build.bench.corpus.edits import block, edited, moved, reindented
from build.bench.corpus.model import Change, Line, perform, place
from build.porting.lines import distinctive, indent
from build.series.verdicts import Verdict

HUMAN = frozenset({Verdict.CONFLICT})
STAYS = frozenset({Verdict.CLEAN, Verdict.OFFSET})
DRIFTS = frozenset({Verdict.DRIFTED})
FILE_MOVED = frozenset({Verdict.MOVED})


@dataclass(frozen=True, slots=True)
class Evolved:
    """What upstream made of the file.

    Attributes:
        lines: the new file.
        change: what a right port does to it; None when there is nothing to do, or a human has to say.
        verdicts: the right ones.
        indent: blanks that the change's lines need in front.
        other: lines of a second file, to which the change belongs now.
        calm: keys of further lines that nothing else may touch, for the scenario to be what it says.
    """

    lines: list[Line]
    change: Change | None
    verdicts: frozenset[Verdict]
    indent: bytes = b""
    other: list[Line] | None = None
    calm: frozenset[int] = frozenset()


Scenario = Callable[[Sequence[Line], Change, random.Random], "Evolved | None"]


def _span(lines: Sequence[Line], change: Change) -> tuple[int, int]:
    start = place(lines, change.after) + 1
    return start, place(lines, change.before)


def untouched(lines: Sequence[Line], change: Change, _: random.Random) -> Evolved:
    """Nothing near the change."""
    return Evolved(list(lines), change, STAYS)


def context(lines: Sequence[Line], change: Change, dice: random.Random) -> Evolved | None:
    """A line of the context changes, but none next to the change."""
    start, end = _span(lines, change)
    return _edit_one(lines, change, (start - 3, start - 2, end + 1, end + 2), dice)


def adjacent(lines: Sequence[Line], change: Change, dice: random.Random) -> Evolved | None:
    """The line right above or below the change changes."""
    start, end = _span(lines, change)
    return _edit_one(lines, change, (start - 1, end), dice)


def _edit_one(lines: Sequence[Line], change: Change, places: Sequence[int], dice: random.Random) -> Evolved | None:
    choices = [n for n in places if 0 < n < len(lines) and distinctive(lines[n].text)]
    if not choices:
        return None
    new = list(lines)
    at = dice.choice(choices)
    new[at] = edited(new[at], dice)
    return Evolved(new, change, DRIFTS)


def reindent(lines: Sequence[Line], change: Change, dice: random.Random) -> Evolved | None:
    """The code around the change is put into a condition."""
    start, end = _span(lines, change)
    first, last = start - dice.randint(5, 14), end + dice.randint(5, 14)
    if first < 1 or last >= len(lines) or not lines[first].text.strip() or not lines[last - 1].text.strip():
        return None
    if any(line.text.startswith(b"#") for line in lines[first:last]):
        return None
    blanks = dice.choice([b"  ", b"    "])
    new = reindented(lines, first, last, blanks)
    return Evolved(new, change, DRIFTS, blanks)


def moved_code(lines: Sequence[Line], change: Change, dice: random.Random) -> Evolved | None:
    """The function with the change moves to another place of the file."""
    where = block(lines, _span(lines, change)[0])
    new = moved(lines, *where, dice) if where else None
    return None if new is None else Evolved(new, change, frozenset({Verdict.OFFSET}))


def moved_and_edited(lines: Sequence[Line], change: Change, dice: random.Random) -> Evolved | None:
    """The function moves, and a line near the change is edited."""
    first = context(lines, change, dice)
    if first is None:
        return None
    second = moved_code(first.lines, change, dice)
    return None if second is None else Evolved(second.lines, change, DRIFTS)


def renamed(lines: Sequence[Line], change: Change, _: random.Random) -> Evolved:
    """The file gets another name (the caller gives it)."""
    return Evolved(list(lines), change, FILE_MOVED)


def renamed_and_edited(lines: Sequence[Line], change: Change, dice: random.Random) -> Evolved | None:
    """The file gets another name, and a line near the change is edited."""
    found = context(lines, change, dice)
    return None if found is None else Evolved(found.lines, change, FILE_MOVED)


def split(lines: Sequence[Line], change: Change, _: random.Random) -> Evolved | None:
    """The function with the change moves to a new file."""
    where = block(lines, _span(lines, change)[0])
    if where is None:
        return None
    start, end = where
    head = [Line(b"// Split off by upstream.\n"), Line(b"#include <upstream/split.h>\n"), Line(b"\n")]
    other = [*head, *lines[start:end]]
    return Evolved([*lines[:start], *lines[end:]], change, FILE_MOVED, other=other)


def upstream_whole(lines: Sequence[Line], change: Change, _: random.Random) -> Evolved:
    """Upstream made the same change."""
    return Evolved(perform(lines, change), None, frozenset({Verdict.UPSTREAM}))


def upstream_reformatted(lines: Sequence[Line], change: Change, dice: random.Random) -> Evolved | None:
    """Upstream made the same change, with other line breaks or indentation."""
    new = perform(lines, change)
    keys = [line.key for line in change.added]
    at = place(new, keys[0])
    if dice.random() < 0.5:
        for n in range(at, at + len(keys)):
            new[n] = Line(b"    " + new[n].text, new[n].key)
    else:
        wide = [n for n in range(at, at + len(keys)) if b"(" in new[n].text and b"//" not in new[n].text]
        if not wide:
            return None
        head, bracket, tail = new[wide[0]].text.partition(b"(")
        more = indent(head) + b"    "
        new[wide[0] : wide[0] + 1] = [Line(head + bracket + b"\n", new[wide[0]].key), Line(more + tail)]
    return Evolved(new, None, frozenset({Verdict.UPSTREAM}))


def upstream_among_others(lines: Sequence[Line], change: Change, dice: random.Random) -> Evolved | None:
    """Upstream made the same change together with others next to it."""
    if sum(distinctive(line.text) for line in change.added) < 2:
        return None
    new = perform(lines, change)
    at = place(new, change.added[-1].key) + 1
    stamp = dice.randrange(10**6)
    new[at:at] = [Line(indent(change.added[-1].text) + b"upstream_more_%d(state);\n" % stamp)]
    return Evolved(new, None, frozenset({Verdict.UPSTREAM}))


def upstream_partly(lines: Sequence[Line], change: Change, dice: random.Random) -> Evolved | None:
    """Upstream added some of the lines."""
    if len(change.added) < 2 or change.removed:
        return None
    some = [line for line in change.added if dice.random() < 0.5] or [change.added[0]]
    if len(some) == len(change.added) or not any(distinctive(line.text) for line in some):
        return None
    part = Change(change.after, change.before, (), tuple(some), change.mark)
    return Evolved(perform(lines, part), change, frozenset({Verdict.PARTLY}))


def copied_function(lines: Sequence[Line], change: Change, dice: random.Random) -> Evolved | None:
    """Upstream adds a copy of the function under another name, above or below it."""
    where = block(lines, _span(lines, change)[0])
    if where is None:
        return None
    start, end = where
    head = Line(lines[start].text.replace(b"(", b"Upstream(", 1))
    if head.text == lines[start].text:
        return None
    copy = [head, *(Line(line.text) for line in lines[start + 1 : end]), Line(b"\n")]
    above = dice.random() < 0.5
    new = [*lines[:start], *copy, *lines[start:]] if above else [*lines[:end], Line(b"\n"), *copy[:-1], *lines[end:]]
    return Evolved(new, change, STAYS | HUMAN, calm=frozenset(line.key for line in copy))


def copied_block(lines: Sequence[Line], change: Change, dice: random.Random) -> Evolved | None:
    """Upstream repeats the lines around the change, so that it is uncertain which ones are meant."""
    start, end = _span(lines, change)
    first, last = start - 5, end + 5
    if first < 0 or last > len(lines):
        return None
    copy = [Line(line.text) for line in lines[first:last]]
    new = [*lines[:first], *copy, *lines[first:]] if dice.random() < 0.5 else [*lines[:last], *copy, *lines[last:]]
    return Evolved(new, None, HUMAN, calm=frozenset(line.key for line in copy))


def changed_target(lines: Sequence[Line], change: Change, dice: random.Random) -> Evolved | None:
    """Upstream changes the lines that the patch replaces."""
    if not change.removed:
        return None
    new = list(lines)
    at = place(new, dice.choice(change.removed))
    changed = edited(new[at], dice)
    if changed.text == new[at].text:
        return None
    new[at] = changed
    return Evolved(new, None, HUMAN)


def same_gap(lines: Sequence[Line], change: Change, dice: random.Random) -> Evolved | None:
    """Upstream adds other lines where the patch adds its own."""
    if change.removed:
        return None
    start, _ = _span(lines, change)
    stamp = dice.randrange(10**6)
    fresh = Line(indent(change.added[0].text) + b"upstream_other_%d(context);\n" % stamp)
    return Evolved([*lines[:start], fresh, *lines[start:]], None, HUMAN)


def removed_code(lines: Sequence[Line], change: Change, _: random.Random) -> Evolved | None:
    """Upstream removes the function with the change."""
    where = block(lines, _span(lines, change)[0])
    return Evolved([*lines[: where[0]], *lines[where[1] :]], None, HUMAN) if where else None


#: Scenario, and its share of the corpus.
SCENARIOS: tuple[tuple[str, Scenario, int], ...] = (
    ("nothing near", untouched, 16),
    ("context edited", context, 12),
    ("next line edited", adjacent, 12),
    ("re-indented", reindent, 8),
    ("code moved", moved_code, 7),
    ("code moved and edited", moved_and_edited, 4),
    ("file renamed", renamed, 5),
    ("file renamed and edited", renamed_and_edited, 4),
    ("file split", split, 4),
    ("upstream", upstream_whole, 4),
    ("upstream, reformatted", upstream_reformatted, 4),
    ("upstream, among others", upstream_among_others, 3),
    ("upstream in part", upstream_partly, 5),
    ("function copied", copied_function, 4),
    ("lines repeated", copied_block, 3),
    ("target changed", changed_target, 3),
    ("same gap", same_gap, 3),
    ("code removed", removed_code, 2),
)
