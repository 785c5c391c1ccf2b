"""Real ports: port the patches of Debian's maintainers with each tool, print the tables, judge the promises."""

from __future__ import annotations

import multiprocessing
import os
import resource
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group
from rich.table import Table

from build import signals
from build.console import console, note, progress
from build.errors import SourceError
from build.porting.engine import PatchPort, port_series
from build.series.model import Verdict
from docs.bench.porting.cases import Kind, RealCase, RealHunk, cases
from docs.bench.porting.corpus import Case
from docs.bench.porting.judge import files_of, judge
from docs.bench.porting.stacks import Package, available, load
from docs.bench.porting.tools import NEW_SIDE, OTHERS, OURS, Result, set_up

#: Fewer packages are not a benchmark.
ENOUGH = 30
TOOLS = (OURS, *OTHERS)
#: The promises: right placements as a multiple of the best other tool's, hunks left to a human as a share of those that
#: `git apply --3way` leaves, hunks of upstream's patches that are recognised, and processor time for one patch.
FACTOR, LEFT, RECOGNISED, SECONDS = 1.05, 0.5, 0.6, 1.0


@dataclass(frozen=True, slots=True)
class HunkScore:
    """The result of each tool for one hunk; verdict and evidence are this project's."""

    path: str
    hunk: int
    results: dict[str, Result]
    verdict: Verdict
    evidence: str


@dataclass(frozen=True, slots=True)
class CaseScore:
    """One patch: its scored hunks, and the processor time of its port."""

    package: str
    patch: str
    kind: Kind
    hunks: tuple[HunkScore, ...]
    seconds: float


def bench(jobs: int = 0) -> bool:
    """Measure and show all packages; return whether the promised figures are kept.

    Args:
        jobs: processes at once, default one for each core.

    Raises:
        SourceError: too few of the packages can be had.
    """
    known = load()
    there = available(known)
    if len({item.name for item in there}) < ENOUGH:
        raise SourceError(
            f"only {len(there)} of {len(known)} packages can be had",
            cause="the mirror does not have these versions any more",
            remedy="name newer versions in docs/bench/porting/packages.toml",
        )
    found = (score for scores in _measured(there, jobs or os.cpu_count() or 1) for score in scores)
    scores = sorted(found, key=lambda item: (item.package, item.patch))
    console.print(tables_of(scores))
    for line in wrong(scores):
        note(line)
    kept = promises(scores)
    for text, good in kept.items():
        note(f"{'kept' if good else 'MISSED'}: {text}")
    return all(kept.values())


def _measured(packages: Mapping[Package, Path], jobs: int) -> Iterator[list[CaseScore]]:
    spawned = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(packages)), spawned, _end_with, (os.getpid(),))
    with progress() as bar, pool:
        task = bar.add_task("porting", total=len(packages), unit="packages")
        running = [pool.submit(measure, item.title, folder) for item, folder in packages.items()]
        try:
            for done in as_completed(running):
                yield done.result()
                bar.advance(task)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def _end_with(parent: int) -> None:
    """Let a worker end with its parent, and with the commands that it runs."""
    os.environ[signals.END_WITH] = str(parent)
    signals.handle()


def measure(title: str, folder: Path) -> list[CaseScore]:
    """Return the scores of a package, whose stacks are in `folder`."""
    return [_score(title, case) for case in cases(folder)]


def _score(title: str, case: RealCase) -> CaseScore:
    start = _processor()
    port = port_series([case.patch], case.old, case.new)[0]
    seconds = _processor() - start
    results = {OURS: judge(case, ported(case, port))}
    results |= {name: judge(case, files) for name, files in others(case).items()}
    verdicts = {(item.path, item.hunk): item for item in port.verdicts}
    hunks = []
    for number, hunk in enumerate(case.scored):
        verdict = verdicts[hunk.path, hunk.number]
        found = {name: every[number] for name, every in results.items()}
        found[OURS] = _honest(found[OURS], hunk, verdict.verdict)
        hunks.append(HunkScore(hunk.path, hunk.number, found, verdict.verdict, verdict.evidence))
    return CaseScore(title, case.patch.name, case.kind, tuple(hunks), round(seconds, 3))


def _honest(result: Result, hunk: RealHunk, verdict: Verdict) -> Result:
    """Return a result of this project's with what its verdict says."""
    if hunk.kept and verdict is Verdict.UPSTREAM:
        return Result.WRONG  # dropped, and the maintainer still needs it
    if result is Result.WRONG and (verdict.needs_human or verdict is Verdict.UPSTREAM):
        return Result.LEFT  # another hunk of the patch has the same lines
    return result


def ported(case: RealCase, port: PatchPort) -> dict[str, bytes]:
    """Return the files as this project's engine leaves them."""
    gone = {path for path, state in port.files.items() if state is None}
    made = {path: state.data for path, state in port.files.items() if state is not None}
    return {path: data for path, data in (files_of(case.new, case.paths) | made).items() if path not in gone}


def others(case: RealCase) -> dict[str, dict[str, bytes]]:
    """Return the files that each other tool makes of the patch, written as git writes it."""
    with tempfile.TemporaryDirectory(prefix="multiworld-bench-") as folder:
        old, new, patched = (files_of(tree, case.paths) for tree in (case.old, case.new, case.patched))
        made = set_up(Case(case.patch.name, old, new, patched, ()), Path(folder), NEW_SIDE)
        return {name: tool(made) for name, tool in OTHERS.items()}


def _processor() -> float:
    """Return the processor time of this process and of the commands that it ran, in seconds."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _hunks(scores: Iterable[CaseScore], kind: Kind) -> list[HunkScore]:
    return [hunk for score in scores if score.kind is kind for hunk in score.hunks]


def _count(hunks: Iterable[HunkScore], tool: str) -> Counter[Result]:
    return Counter(hunk.results[tool] for hunk in hunks)


def _factor(hunks: Sequence[HunkScore]) -> float:
    """Return the right placements of this project as a multiple of the best other tool's."""
    best = max(_count(hunks, name)[Result.RIGHT] for name in OTHERS)
    return _count(hunks, OURS)[Result.RIGHT] / best if best else 1.0


def _recognised(hunks: Iterable[HunkScore]) -> int:
    return sum(hunk.verdict is Verdict.UPSTREAM for hunk in hunks)


def promises(scores: Sequence[CaseScore]) -> dict[str, bool]:
    """Return the promises in words, with their figures, and whether each is kept."""
    refreshed, upstream = _hunks(scores, Kind.REFRESHED), _hunks(scores, Kind.UPSTREAM)
    mine, theirs = _count(refreshed, OURS), _count(refreshed, "git apply --3way")
    put_in = _count(upstream, OURS)[Result.WRONG]
    by_package = {name: [s for s in scores if s.package == name] for name in sorted({s.package for s in scores})}
    behind = [name for name, found in by_package.items() if _factor(_hunks(found, Kind.REFRESHED)) < 1]
    factor, share = _factor(refreshed), _recognised(upstream) / max(len(upstream), 1)
    slow = max((score.seconds for score in scores), default=0.0)
    left = f"left to a human: {mine[Result.LEFT]} of git apply --3way's {theirs[Result.LEFT]} (<= {LEFT:.0%})"
    return {
        f"placed wrong: {mine[Result.WRONG]} (0)": mine[Result.WRONG] == 0,
        f"put in although upstream has it: {put_in} (0)": put_in == 0,
        f"right: {factor:.3f} x the best other (>= {FACTOR})": factor >= FACTOR,
        f"packages where another is better: {len(behind)} (0) {', '.join(behind)}": not behind,
        left: mine[Result.LEFT] <= LEFT * theirs[Result.LEFT],
        f"recognised as upstream: {share:.1%} of hunks (>= {RECOGNISED:.0%})": share >= RECOGNISED,
        f"processor time of a patch: {slow:.2f} s at most (<= {SECONDS})": slow <= SECONDS,
    }


def wrong(scores: Iterable[CaseScore]) -> Iterator[str]:
    """Yield a line for each hunk that is placed wrong, or put in although upstream has it."""
    for score in scores:
        said = "placed wrong" if score.kind is Kind.REFRESHED else "put in, upstream has it"
        for hunk in score.hunks:
            if hunk.results[OURS] is Result.WRONG:
                where = f"{score.package}: {score.patch}: {hunk.path} hunk {hunk.hunk}"
                yield f"{said}: {where}: {hunk.verdict.value}: {hunk.evidence}"


def tables_of(scores: Sequence[CaseScore]) -> Group:
    placed = "hunks that a maintainer placed: right / wrong / left to a human"
    put_in = "hunks of patches that upstream has: all, recognised, put in all the same"
    return Group(
        _table(scores, Kind.REFRESHED, placed, TOOLS, _placed),
        _table(scores, Kind.UPSTREAM, put_in, ("all", "recognised", *TOOLS), _put_in),
    )


def _table(
    scores: Sequence[CaseScore],
    kind: Kind,
    title: str,
    columns: Sequence[str],
    cells: Callable[[Sequence[HunkScore]], list[str]],
) -> Table:
    made = Table(title=title, title_justify="left")
    made.add_column("package", overflow="fold")
    for name in columns:
        made.add_column(name, justify="right", overflow="fold")
    for package in dict.fromkeys(score.package for score in scores):
        if hunks := _hunks((score for score in scores if score.package == package), kind):
            made.add_row(package, *cells(hunks))
    made.add_section()
    made.add_row("all", *cells(_hunks(scores, kind)), style="bold")
    return made


def _placed(hunks: Sequence[HunkScore]) -> list[str]:
    return [" / ".join(str(_count(hunks, tool)[result]) for result in Result) for tool in TOOLS]


def _put_in(hunks: Sequence[HunkScore]) -> list[str]:
    counts = [str(_count(hunks, tool)[Result.WRONG]) for tool in TOOLS]
    return [str(len(hunks)), str(_recognised(hunks)), *counts]
