"""A generated corpus of ports over real sources, whose right outcome is known because it was made.

A file is a list of lines that keep their identity while a generated upstream edits them. So the place of a patch's
lines is known afterwards. Every scenario states which verdicts are right.
"""

from __future__ import annotations

import itertools
import posixpath
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from build.porting.lines import distinctive, indent
from build.series.model import Verdict

_ids = itertools.count()


@dataclass(frozen=True, slots=True)
class Line:
    """A line with an identity: `key` stays when the text or the place changes."""

    text: bytes
    key: int = field(default_factory=lambda: next(_ids))


def lines_of(data: bytes) -> list[Line]:
    return [Line(text + b"\n") for text in data.rstrip(b"\n").split(b"\n")]


def join(lines: Iterable[Line]) -> bytes:
    return b"".join(line.text for line in lines)


@dataclass(frozen=True, slots=True)
class Change:
    """Replace the lines `removed` by `added`, between the lines `after` and `before`; lines are named by key."""

    after: int
    before: int
    removed: tuple[int, ...]
    added: tuple[Line, ...]
    mark: bytes


@dataclass(frozen=True, slots=True)
class Expected:
    """The right outcome of one change.

    Attributes:
        scenario: what upstream did there.
        mark: a word that only its lines have.
        verdicts: those that are right.
        path: the file of the new tree it belongs to.
        segment: lines that are together in a right result; empty when a human has to decide.
        before: the marked lines that the new file has already; `after` those of a right result.
    """

    scenario: str
    mark: bytes
    verdicts: frozenset[Verdict]
    path: str
    segment: tuple[bytes, ...]
    before: tuple[bytes, ...]
    after: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One patch to be ported.

    Attributes:
        name: for messages.
        old: the old tree; `new` the new one; `patched` the old one with the patch; all by path.
        expected: one per hunk, in the order of the file.
    """

    name: str
    old: dict[str, bytes]
    new: dict[str, bytes]
    patched: dict[str, bytes]
    expected: tuple[Expected, ...]


def place(lines: Sequence[Line], key: int) -> int:
    """Return the index of the line with `key`; ValueError if it is gone."""
    return [line.key for line in lines].index(key)


def perform(lines: Sequence[Line], change: Change, indent: bytes = b"") -> list[Line]:
    gone = {*change.removed, *(line.key for line in change.added)}
    kept = [line for line in lines if line.key not in gone]
    if change.after >= 0 and any(line.key == change.after for line in kept):
        at = place(kept, change.after) + 1
    else:
        at = place(kept, change.before)
    added = [Line(indent + line.text if line.text.strip() else line.text, line.key) for line in change.added]
    return [*kept[:at], *added, *kept[at:]]


_WORD = re.compile(rb"[A-Za-z_]\w+")


def usable(lines: Sequence[Line], at: int, reach: int = 4) -> bool:
    """Return whether a patch could change line `at`: it is code, with code around it."""
    near = lines[max(0, at - reach) : at + reach + 1]
    text = lines[at].text
    if len(near) < 2 * reach + 1 or not distinctive(text) or text.lstrip().startswith((b"#", b"//", b"*")):
        return False
    return sum(distinctive(line.text) for line in near) >= 3


def insertion(lines: Sequence[Line], at: int, mark: bytes, dice: random.Random) -> Change:
    blanks = indent(lines[at + 1].text) if lines[at + 1].text.strip() else indent(lines[at].text)
    bodies = [
        [b"check_state(%s, other_%s);" % (mark, mark)],
        [b"if (%s_enabled()) {" % mark, b"  report_%s(status);" % mark, b"}"],
        [b"auto result_%s = compute(%s);" % (mark, mark), b"record(result_%s);" % mark],
        [b"try_%s();" % mark, b"// keeps %s alive" % mark, b"hold(%s);" % mark, b"finish_%s();" % mark],
    ]
    body = dice.choice(bodies)
    added = tuple(Line(blanks + text + b"\n") for text in body)
    return Change(lines[at].key, lines[at + 1].key, (), added, mark)


def replacement(lines: Sequence[Line], at: int, mark: bytes, dice: random.Random) -> Change:
    """Change a word of line `at`, perhaps adding a line as well."""
    words = list(_WORD.finditer(lines[at].text))
    word = dice.choice(words)
    text = lines[at].text[: word.start()] + mark + b"_" + lines[at].text[word.start() :]
    added = [Line(text)]
    if dice.random() < 0.4:
        added.append(Line(indent(lines[at].text) + b"note_%s();\n" % mark))
    return Change(lines[at - 1].key, lines[at + 1].key, (lines[at].key,), tuple(added), mark)


def rewrite(lines: Sequence[Line], at: int, mark: bytes, dice: random.Random) -> Change:
    count = dice.randint(2, 3)
    blanks = indent(lines[at].text)
    body = (b"guarded_call(%s, [&] {" % mark, b"  return run_%s();" % mark, b"}); // " + mark)
    added = tuple(Line(blanks + text + b"\n") for text in body)
    keys = tuple(line.key for line in lines[at : at + count])
    return Change(lines[at - 1].key, lines[at + count].key, keys, added, mark)


Kind = Callable[[Sequence[Line], int, bytes, random.Random], Change]
KINDS: tuple[Kind, ...] = (insertion, insertion, replacement, rewrite)
_LONG_WORD = re.compile(rb"[A-Za-z_]\w{3,}")
#: Lines kept free of unrelated edits around a hunk.
CALM = 9


def edited(line: Line, dice: random.Random) -> Line:
    """Return a line with one word changed, as a renamed variable or an added qualifier would."""
    words = list(_LONG_WORD.finditer(line.text))
    if not words:
        return Line(line.text.rstrip(b"\n") + b" // upstream\n", line.key)
    word = dice.choice(words)
    new = dice.choice([word[0] + b"_v2", b"new_" + word[0], b"detail::" + word[0]])
    return Line(line.text[: word.start()] + new + line.text[word.end() :], line.key)


def noise(lines: Sequence[Line], keys: set[int], dice: random.Random) -> list[Line]:
    """Return `lines` with edits far from the lines `keys`: this shifts everything behind them."""
    result = list(lines)
    for _ in range(dice.randint(2, 6)):
        calm = {n for key in keys for n in _around(result, key)}
        free = [n for n in range(1, len(result) - 1) if n not in calm and result[n].text.strip()]
        if not free:
            break
        at = dice.choice(free)
        blanks = indent(result[at].text)
        kind = dice.random()
        if kind < 0.45:
            count = dice.randint(1, 12)
            stamp = dice.randrange(10**6)
            fresh = [Line(blanks + b"upstream_%d_%d(); // added\n" % (stamp, n)) for n in range(count)]
            result[at:at] = fresh
        elif kind < 0.7:
            result[at] = edited(result[at], dice)
        else:
            end = min(at + dice.randint(1, 4), len(result) - 1)
            # A line that opens something at the top level stays: code does not fall into the function above.
            if not any(n in calm or _opens(result[n].text) for n in range(at, end)):
                del result[at:end]
    return result


def _around(lines: Sequence[Line], key: int) -> range:
    try:
        at = place(lines, key)
    except ValueError:
        return range(0)
    return range(at - CALM, at + CALM + 1)


def block(lines: Sequence[Line], at: int) -> tuple[int, int] | None:
    """Return the top-level definition around line `at` (start, end excluded), None if there is no clear one."""
    start = at
    while start > 0 and not _opens(lines[start].text):
        start -= 1
    end = at + 1
    while end < len(lines) and not _opens(lines[end].text):
        end += 1
    while end > start and not lines[end - 1].text.strip():
        end -= 1
    if not 12 <= end - start <= 120 or start == 0 or not distinctive(lines[start].text):
        return None
    return (start, end) if start + 4 < at < end - 4 else None


def _opens(text: bytes) -> bool:
    first = text[:1]
    return first.isalpha() and not text.startswith((b"public:", b"private:", b"protected:"))


HUMAN = frozenset({Verdict.CONFLICT})
STAYS = frozenset({Verdict.CLEAN, Verdict.OFFSET})
DRIFTS = frozenset({Verdict.DRIFTED})
FILE_MOVED = frozenset({Verdict.MOVED})


@dataclass(frozen=True, slots=True)
class Evolved:
    """The file as upstream changed it.

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


def _edited_at(before: tuple[int, ...], behind: tuple[int, ...]) -> Scenario:
    """Return the scenario in which one of these lines changes, counted from the change."""

    def scenario(lines: Sequence[Line], change: Change, dice: random.Random) -> Evolved | None:
        start, end = _span(lines, change)
        places = (*(start - n for n in before), *(end + n for n in behind))
        choices = [n for n in places if 0 < n < len(lines) and distinctive(lines[n].text)]
        if not choices:
            return None
        new = list(lines)
        at = dice.choice(choices)
        new[at] = edited(new[at], dice)
        return Evolved(new, change, DRIFTS)

    return scenario


#: A line of the context changes, but none next to the change; and the line right above or below it.
context, adjacent = _edited_at((3, 2), (1, 2)), _edited_at((1,), (0,))


def reindent(lines: Sequence[Line], change: Change, dice: random.Random) -> Evolved | None:
    """The code around the change is put into a condition."""
    start, end = _span(lines, change)
    first, last = start - dice.randint(5, 14), end + dice.randint(5, 14)
    if first < 1 or last >= len(lines) or not lines[first].text.strip() or not lines[last - 1].text.strip():
        return None
    if any(line.text.startswith(b"#") for line in lines[first:last]):
        return None
    blanks, outer = dice.choice([b"  ", b"    "]), indent(lines[first].text)
    inner = [Line(blanks + line.text if line.text.strip() else line.text, line.key) for line in lines[first:last]]
    head, tail = Line(outer + b"if (upstream_feature_enabled()) {\n"), Line(outer + b"} // upstream feature\n")
    return Evolved([*lines[:first], head, *inner, tail, *lines[last:]], change, DRIFTS, blanks)


def moved_code(lines: Sequence[Line], change: Change, dice: random.Random) -> Evolved | None:
    """The function with the change moves before another top-level definition of the file, far away."""
    where = block(lines, _span(lines, change)[0])
    if where is None:
        return None
    start, end = where
    rest = [*lines[:start], *lines[end:]]
    spots = [n for n in range(2, len(rest)) if _opens(rest[n].text) and not rest[n - 1].text.strip()]
    spots = [n for n in spots if abs(n - start) > max(60, end - start)]
    if not spots:
        return None
    at = dice.choice(spots)
    new = [*rest[:at], *lines[start:end], Line(b"\n"), *rest[at:]]
    return Evolved(new, change, frozenset({Verdict.OFFSET}))


def renamed(lines: Sequence[Line], change: Change, _: random.Random) -> Evolved:
    """The file gets another name (the caller gives it)."""
    return Evolved(list(lines), change, FILE_MOVED)


def _edited_and(second: Scenario, verdicts: frozenset[Verdict]) -> Scenario:
    """Return the scenario in which a line near the change is edited, and `second` happens."""

    def scenario(lines: Sequence[Line], change: Change, dice: random.Random) -> Evolved | None:
        first = context(lines, change, dice)
        found = second(first.lines, change, dice) if first else None
        return replace(found, verdicts=verdicts) if found else None

    return scenario


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
    ("code moved and edited", _edited_and(moved_code, DRIFTS), 4),
    ("file renamed", renamed, 5),
    ("file renamed and edited", _edited_and(renamed, FILE_MOVED), 4),
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

#: Lines between two hunks of a patch, so that git keeps them apart and scenarios do not meet.
APART = 40
#: What may happen to the second and third hunk of a patch while the first has its scenario.
_FOR_OTHERS = ("nothing near", "context edited", "upstream", "target changed", "next line edited", "same gap")
_BY_TITLE = {title: scenario for title, scenario, _ in SCENARIOS}
_WHOLE_FILE = {"file renamed", "file renamed and edited", "file split", "code removed"}
#: Other files in the tree, for tools that look around.
NEIGHBOURS = 6


@dataclass(frozen=True, slots=True)
class Draft:
    """A change with what upstream did to it."""

    change: Change
    scenario: str
    evolved: Evolved


def generate(sources: Mapping[str, bytes], count: int, seed: int) -> Iterator[Case]:
    """Yield `count` cases; the same sources (real files by path) and seed give the same cases."""
    dice = random.Random(seed)  # noqa: S311 - reproducible, not secret
    names = [name for name in sorted(sources) if 120 <= sources[name].count(b"\n") <= 3000]
    weights = [weight for _, _, weight in SCENARIOS]
    for number in range(count):
        title = dice.choices(SCENARIOS, weights)[0][0]
        # Some files have no place for a scenario. Trying another file keeps the share of each scenario.
        case = None
        while case is None:
            case = _case(f"{number:04d}", title, dice.choice(names), sources, dice)
        yield case


def _case(number: str, title: str, name: str, sources: Mapping[str, bytes], dice: random.Random) -> Case | None:
    lines = lines_of(sources[name])
    changes = _changes(lines, number, 1 if title in _WHOLE_FILE else dice.randint(1, 3), dice)
    if not changes:
        return None
    drafts: list[Draft] = []
    current = lines
    for n, change in enumerate(changes):
        what = title if n == 0 else dice.choice(_FOR_OTHERS)
        evolved = _BY_TITLE[what](current, change, dice)
        if evolved is None:
            if n == 0:
                return None
            what, evolved = "nothing near", untouched(current, change, dice)
        drafts.append(Draft(change, what, evolved))
        current = evolved.lines
    current = noise(current, _keys(drafts), dice)
    drafts = [_seen(draft, lines, current) for draft in drafts]
    return _assemble(f"{number} {title}", name, lines, current, drafts, sources, dice)


def _changes(lines: Sequence[Line], number: str, count: int, dice: random.Random) -> list[Change]:
    """Return changes at random places, apart from each other; the first one is not always the topmost."""
    places = [n for n in range(12, len(lines) - 12) if usable(lines, n)]
    chosen: list[int] = []
    for _ in range(count):
        free = [n for n in places if all(abs(n - other) > APART for other in chosen)]
        if free:
            chosen.append(dice.choice(free))
    kinds = [dice.choice(KINDS) for _ in chosen]
    return [
        kind(lines, at, f"mw{number}x{n}".encode(), dice)
        for n, (at, kind) in enumerate(zip(chosen, kinds, strict=True))
    ]


def _keys(drafts: Sequence[Draft]) -> set[int]:
    return {
        key
        for draft in drafts
        for key in (
            draft.change.after,
            draft.change.before,
            *draft.change.removed,
            *(line.key for line in draft.change.added),
            *draft.evolved.calm,
        )
    }


def _seen(draft: Draft, lines: Sequence[Line], current: Sequence[Line]) -> Draft:
    """Name a change by what happened around it: the scenario of another hunk may have come near."""
    if draft.scenario != "nothing near":
        return draft
    first = place(lines, draft.change.after) - 2
    last = place(lines, draft.change.before) + 3
    keys = [line.key for line in lines[max(0, first) : last]]
    known = [line.key for line in current]
    at = known.index(keys[0]) if keys[0] in known else -1
    if at >= 0 and known[at : at + len(keys)] == keys:
        return draft
    return replace(draft, scenario="context edited", evolved=replace(draft.evolved, verdicts=DRIFTS))


def _assemble(
    title: str,
    name: str,
    lines: Sequence[Line],
    current: list[Line],
    drafts: Sequence[Draft],
    sources: Mapping[str, bytes],
    dice: random.Random,
) -> Case:
    patched = list(lines)
    for draft in drafts:
        patched = perform(patched, draft.change)
    new_name = _new_name(name, dice) if drafts[0].scenario.startswith("file renamed") else name
    new = {new_name: current}
    truth = {new_name: list(current)}
    other = drafts[0].evolved.other
    if other is not None:
        new[_new_name(name, dice)] = other
        truth = {path: list(content) for path, content in new.items()}
    expected = []
    for draft in drafts:
        path = next(iter(new)) if draft.evolved.other is None else list(new)[1]
        if draft.evolved.change is not None:
            truth[path] = perform(truth[path], draft.evolved.change, draft.evolved.indent)
        expected.append((draft, path))
    expected.sort(key=lambda pair: place(lines, pair[0].change.after))
    around = dice.sample(sorted(set(sources) - {name}), NEIGHBOURS)
    rest = {path: sources[path] for path in around}
    return Case(
        title,
        {name: join(lines), **rest},
        {**{path: join(content) for path, content in new.items()}, **rest},
        {name: join(patched), **rest},
        tuple(_expected(draft, path, new[path], truth[path]) for draft, path in expected),
    )


def _expected(draft: Draft, path: str, new: Sequence[Line], truth: Sequence[Line]) -> Expected:
    mark = draft.change.mark
    before = tuple(line.text for line in new if mark in line.text)
    human = draft.evolved.verdicts == HUMAN
    after = before if human else tuple(line.text for line in truth if mark in line.text)
    at = [] if human else [n for n, line in enumerate(truth) if mark in line.text]
    segment = tuple(line.text for line in truth[max(0, at[0] - 2) : at[-1] + 3]) if at else ()
    return Expected(draft.scenario, mark, draft.evolved.verdicts, path, segment, before, after)


def _new_name(name: str, dice: random.Random) -> str:
    folder, base = posixpath.split(name)
    stem, suffix = posixpath.splitext(base)
    return dice.choice([f"{folder}/impl/{base}", f"{folder}/{stem}_impl{suffix}", f"moved/{base}"])
