"""Make cases: a real file, a patch with one to three hunks, and what upstream did meanwhile."""

from __future__ import annotations

import posixpath
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from build.bench.corpus import scenarios
from build.bench.corpus.edits import KINDS, noise, usable
from build.bench.corpus.model import Case, Change, Expected, Line, join, lines_of, perform, place
from build.bench.corpus.scenarios import Evolved

#: Lines between two hunks of a patch, so that git keeps them apart and scenarios do not meet.
APART = 40
#: What may happen to the second and third hunk of a patch while the first has its scenario.
_FOR_OTHERS = ("nothing near", "context edited", "upstream", "target changed", "next line edited", "same gap")
_BY_TITLE = {title: scenario for title, scenario, _ in scenarios.SCENARIOS}
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
    weights = [weight for _, _, weight in scenarios.SCENARIOS]
    for number in range(count):
        title = dice.choices(scenarios.SCENARIOS, weights)[0][0]
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
            what, evolved = "nothing near", scenarios.untouched(current, change, dice)
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
    return replace(draft, scenario="context edited", evolved=replace(draft.evolved, verdicts=scenarios.DRIFTS))


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
    human = draft.evolved.verdicts == scenarios.HUMAN
    after = before if human else tuple(line.text for line in truth if mark in line.text)
    at = [] if human else [n for n, line in enumerate(truth) if mark in line.text]
    segment = tuple(line.text for line in truth[max(0, at[0] - 2) : at[-1] + 3]) if at else ()
    return Expected(draft.scenario, mark, draft.evolved.verdicts, path, segment, before, after)


def _new_name(name: str, dice: random.Random) -> str:
    folder, base = posixpath.split(name)
    stem, suffix = posixpath.splitext(base)
    return dice.choice([f"{folder}/impl/{base}", f"{folder}/{stem}_impl{suffix}", f"moved/{base}"])
