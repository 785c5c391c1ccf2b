"""Generated ports: how many hunks each tool places right, wrong, or leaves to a human."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from build.console import console, note, progress
from build.errors import SourceError
from build.porting.engine import PatchPort
from build.porting.trees import Tree
from build.series.inspect import occurrences
from docs.bench.porting.corpus import SCENARIOS, Case, Expected, generate
from docs.bench.porting.tools import OTHERS, OURS, Result, ours, set_up

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
class Scores:
    """The outcome of the benchmark.

    Attributes:
        results: counts by tool, scenario and result.
        verdicts: of this project, by scenario and whether right.
        wrong: what it placed wrong or judged wrong, for looking into.
        seconds: time this project's engine took for all of them.
    """

    results: Counter[tuple[str, str, Result]] = field(default_factory=Counter)
    verdicts: Counter[tuple[str, bool]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def count(self, tool: str, result: Result, scenario: str = "") -> int:
        wanted = [scenario] if scenario else [name for name, _, _ in SCENARIOS]
        return sum(self.results[tool, name, result] for name in wanted)

    @property
    def verdict_share(self) -> float:
        return sum(n for (_, good), n in self.verdicts.items() if good) / max(self.verdicts.total(), 1)

    @property
    def factor(self) -> float:
        best = max(self.count(name, Result.RIGHT) for name in OTHERS)
        return self.count(OURS, Result.RIGHT) / max(best, 1)

    @property
    def kept(self) -> bool:
        good = self.factor >= FACTOR and self.verdict_share >= VERDICTS
        return good and self.count(OURS, Result.WRONG) == 0

    def add(self, tool: str, case: Case, files: Mapping[str, bytes]) -> list[Result]:
        found = [score(expected, files) for expected in case.expected]
        self.results.update(
            (tool, expected.scenario, result) for expected, result in zip(case.expected, found, strict=True)
        )
        return found

    def judge(self, case: Case, files: Mapping[str, bytes], port: PatchPort) -> None:
        """Count a case of this project's engine, verdicts included."""
        results = self.add(OURS, case, files)
        for expected, result, verdict in zip(case.expected, results, port.verdicts, strict=True):
            # Where several verdicts are right, a placement must be a right one.
            good = verdict.verdict in expected.verdicts and result is not Result.WRONG
            self.verdicts[expected.scenario, good] += 1
            if not good:
                words = "/".join(sorted(item.value for item in expected.verdicts))
                self.wrong.append(
                    f"{case.name}: hunk {verdict.hunk} ({expected.scenario}): {result.value}, "
                    f"{verdict.verdict.value} instead of {words}: {verdict.evidence}"
                )


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
    scores = Scores()
    with progress() as bar:
        task = bar.add_task("cases", total=count, unit="cases")
        for case in generate(sources, count, seed):
            with tempfile.TemporaryDirectory(prefix="multiworld-bench-") as folder:
                bench = set_up(case, Path(folder))
                for name, tool in OTHERS.items():
                    scores.add(name, case, tool(bench))
                start = time.perf_counter()
                files, port = ours(bench)
                scores.seconds += time.perf_counter() - start
                scores.judge(case, files, port)
            bar.advance(task)
    return scores


def table(scores: Scores, title: str) -> Table:
    made = Table(title=title, title_justify="left")
    made.add_column("what upstream did", overflow="fold")
    for name in (OURS, *OTHERS, "verdict right"):
        made.add_column(name, justify="right", overflow="fold")
    for scenario, _, _ in SCENARIOS:
        good, bad = (scores.verdicts[scenario, value] for value in (True, False))
        made.add_row(scenario, *_cells(scores, scenario), f"{good} of {good + bad}")
    made.add_section()
    made.add_row("all", *_cells(scores, ""), f"{scores.verdict_share:.1%}", style="bold")
    return made


def _cells(scores: Scores, scenario: str) -> list[str]:
    return [" / ".join(str(scores.count(tool, result, scenario)) for result in Result) for tool in (OURS, *OTHERS)]


def bench(tree: Tree, count: int = 300, seed: int = HELD_OUT) -> bool:
    """Measure, show the table, and return whether the promised figures are kept."""
    scores = measure(sources_of(tree), count, seed)
    title = f"ports: {count} patches, seed {seed}; hunks placed right / wrong / left to a human"
    console.print(table(scores, title))
    for line in scores.wrong:
        note(line)
    console.print(
        f"right placements: {scores.factor:.2f} x the best other (>= {FACTOR}); wrong placements: "
        f"{scores.count(OURS, Result.WRONG)} (0); verdicts right: {scores.verdict_share:.1%} (>= {VERDICTS:.0%}); "
        f"{1000 * scores.seconds / count:.0f} ms per patch"
    )
    return scores.kept
