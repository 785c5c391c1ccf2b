"""Score what a tool made of a case, hunk by hunk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from build.bench.corpus.model import Case, Expected


class Result(Enum):
    """What a tool made of one hunk."""

    RIGHT = "placed right"
    WRONG = "placed wrong"
    LEFT = "left to a human"


def score(expected: Expected, files: Mapping[str, bytes]) -> Result:
    """Return what became of one hunk.

    Args:
        expected: what is right.
        files: the new tree as the tool left it, without what is between conflict markers.
    """
    lines = [line for data in files.values() for line in data.splitlines(keepends=True)]
    marked = [line for line in lines if expected.mark in line]
    own = files.get(expected.path, b"").splitlines(keepends=True)
    if expected.segment and marked == list(expected.after) and _stands(own, expected.segment):
        return Result.RIGHT
    # Nothing new of the hunk anywhere: it was refused, or is between conflict markers.
    return Result.LEFT if len(marked) <= len(expected.before) else Result.WRONG


def _stands(lines: list[bytes], segment: tuple[bytes, ...]) -> bool:
    size = len(segment)
    return any(tuple(lines[n : n + size]) == segment for n in range(len(lines) - size + 1))


@dataclass(slots=True)
class Tally:
    """Counts of one tool: results by scenario; for this project also right verdicts."""

    results: Counter[tuple[str, Result]] = field(default_factory=Counter)
    verdicts: Counter[tuple[str, bool]] = field(default_factory=Counter)

    def count(self, result: Result, scenario: str = "") -> int:
        return sum(n for (name, found), n in self.results.items() if found is result and scenario in {"", name})

    @property
    def verdict_share(self) -> float:
        total = sum(self.verdicts.values())
        return sum(n for (_, good), n in self.verdicts.items() if good) / total if total else 0.0


def add(tally: Tally, case: Case, files: Mapping[str, bytes]) -> list[Result]:
    found = [score(expected, files) for expected in case.expected]
    for expected, result in zip(case.expected, found, strict=True):
        tally.results[expected.scenario, result] += 1
    return found
