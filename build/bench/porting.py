"""`bench porting`: how many hunks are placed right, wrong, or left to a human, against git and patch."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from build.bench.corpus import SCENARIOS, Case, Expected, generate
from build.bench.tools import OTHERS, OURS, Result, ours, set_up
from build.console import console, note, progress
from build.errors import SourceError
from build.porting.engine import PatchPort
from build.porting.lines import occurrences
from build.porting.trees import Tree

#: Folders whose files the corpus is made of.
ROOTS = ("torch/csrc/", "aten/src/ATen/native/", "c10/")
SUFFIXES = (".cpp", ".cu", ".cuh", ".h")
#: The promises: right placements as a multiple of the best other tool's, and the share of right verdicts.
FACTOR, VERDICTS = 1.3, 0.98
#: A seed that was not used while the engine was made (that was done with seeds 1 to 4).
HELD_OUT = 20261121


def score(expected: Expected, files: Mapping[str, bytes]) -> Result:
    """Return what became of one hunk in `files`, the tool's new tree without what is between conflict markers."""
    lines = [line for data in files.values() for line in data.splitlines(keepends=True)]
    marked = [line for line in lines if expected.mark in line]
    own = files.get(expected.path, b"").splitlines(keepends=True)
    if marked == list(expected.after) and occurrences(own, expected.segment):
        return Result.RIGHT
    # None of its lines is new: the hunk was refused, or is between conflict markers.
    return Result.LEFT if len(marked) <= len(expected.before) else Result.WRONG


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


@dataclass(frozen=True, slots=True)
class Scores:
    """The benchmark's outcome.

    Attributes:
        tallies: counts by tool.
        cases: how many patches.
        seconds: time this project's engine took for all of them.
        wrong: what it placed wrong or judged wrong, for looking into.
    """

    tallies: Mapping[str, Tally]
    cases: int
    seconds: float
    wrong: tuple[str, ...]

    @property
    def factor(self) -> float:
        best = max(self.tallies[name].count(Result.RIGHT) for name in OTHERS)
        return self.tallies[OURS].count(Result.RIGHT) / max(best, 1)

    @property
    def kept(self) -> bool:
        mine = self.tallies[OURS]
        return mine.count(Result.WRONG) == 0 and self.factor >= FACTOR and mine.verdict_share >= VERDICTS


def sources_of(tree: Tree) -> dict[str, bytes]:
    """Return the real files that the corpus is made of.

    Raises:
        SourceError: the tree has too few.
    """
    names = [name for name in tree.entries if name.startswith(ROOTS) and name.endswith(SUFFIXES)]
    if len(names) < 100:
        raise SourceError(f"{tree.label} has only {len(names)} usable files", cause="it is not a PyTorch source tree")
    return tree.read_many(names)


def measure(sources: Mapping[str, bytes], count: int, seed: int) -> Scores:
    tallies = {name: Tally() for name in (OURS, *OTHERS)}
    wrong: list[str] = []
    seconds = 0.0
    with progress() as bar:
        task = bar.add_task("cases", total=count, unit="cases")
        for case in generate(sources, count, seed):
            with tempfile.TemporaryDirectory(prefix="multiworld-bench-") as folder:
                bench = set_up(case, Path(folder))
                for name, tool in OTHERS.items():
                    add(tallies[name], case, tool(bench))
                start = time.perf_counter()
                files, port = ours(bench)
                seconds += time.perf_counter() - start
                wrong += _judge(case, tallies[OURS], files, port)
            bar.advance(task)
    return Scores(tallies, count, seconds, tuple(wrong))


def _judge(case: Case, tally: Tally, files: Mapping[str, bytes], port: PatchPort) -> list[str]:
    """Count a case of this project's engine, verdicts included; return what is not right."""
    results = add(tally, case, files)
    found = []
    for expected, result, verdict in zip(case.expected, results, port.verdicts, strict=True):
        # Where several verdicts are right, a placement must be a right one.
        good = verdict.verdict in expected.verdicts and result is not Result.WRONG
        tally.verdicts[expected.scenario, good] += 1
        if not good:
            words = "/".join(sorted(item.value for item in expected.verdicts))
            found.append(
                f"{case.name}: hunk {verdict.hunk} ({expected.scenario}): {result.value}, "
                f"{verdict.verdict.value} instead of {words}: {verdict.evidence}"
            )
    return found


def table(scores: Scores, seed: int) -> Table:
    made = Table(
        title=f"ports: {scores.cases} patches, seed {seed}; hunks placed right / wrong / left to a human",
        title_justify="left",
    )
    made.add_column("what upstream did", overflow="fold")
    for name in scores.tallies:
        made.add_column(name, justify="right", overflow="fold")
    made.add_column("verdict right", justify="right", overflow="fold")
    for scenario, _, _ in SCENARIOS:
        made.add_row(scenario, *_cells(scores, scenario), _share(scores.tallies[OURS], scenario))
    made.add_section()
    made.add_row("all", *_cells(scores, ""), f"{scores.tallies[OURS].verdict_share:.1%}", style="bold")
    return made


def _cells(scores: Scores, scenario: str) -> Sequence[str]:
    cells = []
    for tally in scores.tallies.values():
        right, wrong, left = (tally.count(result, scenario) for result in Result)
        cells.append(f"{right} / {f'[red]{wrong}[/]' if wrong else 0} / {left}")
    return cells


def _share(tally: Tally, scenario: str) -> str:
    good, bad = (tally.verdicts[scenario, value] for value in (True, False))
    return f"{good} of {good + bad}"


def bench(tree: Tree, count: int = 300, seed: int = HELD_OUT) -> bool:
    scores = measure(sources_of(tree), count, seed)
    console.print(table(scores, seed))
    for line in scores.wrong:
        note(line)
    mine = scores.tallies[OURS]
    console.print(
        f"right placements: {scores.factor:.2f} x the best other (>= {FACTOR}); wrong placements: "
        f"{mine.count(Result.WRONG)} (0); verdicts right: {mine.verdict_share:.1%} (>= {VERDICTS:.0%}); "
        f"{1000 * scores.seconds / scores.cases:.0f} ms per patch"
    )
    return scores.kept
