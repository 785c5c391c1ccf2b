"""The figures of the benchmark with real patches, and what the project promises of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec
from rich.console import Group
from rich.table import Table

from build.bench.corpus.tools import OTHERS
from build.bench.real.cases import Kind
from build.bench.real.judge import Result
from build.bench.real.measure import OURS, CaseScore, HunkScore
from build.series.verdicts import Verdict

TOOLS = (OURS, *OTHERS)
#: The promises: right placements as a multiple of the best other tool's, hunks left to a human as a share of those that
#: `git apply --3way` leaves, hunks of upstream's patches that are recognised, and processor time for one patch.
FACTOR, LEFT, RECOGNISED, SECONDS = 1.05, 0.5, 0.6, 1.0


def hunks_of(scores: Iterable[CaseScore], kind: Kind) -> list[HunkScore]:
    return [hunk for score in scores if score.kind is kind for hunk in score.hunks]


def count(hunks: Iterable[HunkScore], tool: str) -> Counter[Result]:
    return Counter(hunk.results[tool] for hunk in hunks)


def factor(scores: Sequence[CaseScore]) -> float:
    hunks = hunks_of(scores, Kind.REFRESHED)
    best = max(count(hunks, name)[Result.RIGHT] for name in OTHERS)
    return count(hunks, OURS)[Result.RIGHT] / best if best else 1.0


def recognised(scores: Sequence[CaseScore]) -> int:
    return sum(hunk.verdict is Verdict.UPSTREAM for hunk in hunks_of(scores, Kind.UPSTREAM))


def kept(scores: Sequence[CaseScore]) -> bool:
    return all(line.good for line in _promises(scores))


class Promise(msgspec.Struct, frozen=True):
    """One promise: in words, with the figure, and whether it is kept."""

    text: str
    good: bool


def _promises(scores: Sequence[CaseScore]) -> list[Promise]:
    refreshed, upstream = hunks_of(scores, Kind.REFRESHED), hunks_of(scores, Kind.UPSTREAM)
    mine, theirs = count(refreshed, OURS), count(refreshed, "git apply --3way")
    put_in = count(upstream, OURS)[Result.WRONG]
    packages = {score.package for score in scores}
    behind = [name for name in sorted(packages) if factor([s for s in scores if s.package == name]) < 1]
    share = recognised(scores) / max(len(upstream), 1)
    slow = max((score.seconds for score in scores), default=0.0)
    return [
        Promise(f"placed wrong: {mine[Result.WRONG]} (0)", mine[Result.WRONG] == 0),
        Promise(f"put in although upstream has it: {put_in} (0)", put_in == 0),
        Promise(f"right: {factor(scores):.3f} x the best other (>= {FACTOR})", factor(scores) >= FACTOR),
        Promise(f"packages where another is better: {len(behind)} (0) {', '.join(behind)}", not behind),
        Promise(
            f"left to a human: {mine[Result.LEFT]} of git apply --3way's {theirs[Result.LEFT]} (<= {LEFT:.0%})",
            mine[Result.LEFT] <= LEFT * theirs[Result.LEFT],
        ),
        Promise(f"recognised as upstream: {share:.1%} of hunks (>= {RECOGNISED:.0%})", share >= RECOGNISED),
        Promise(f"processor time of a patch: {slow:.2f} s at most (<= {SECONDS})", slow <= SECONDS),
    ]


def tables_of(scores: Sequence[CaseScore]) -> Group:
    return Group(
        _table(scores, Kind.REFRESHED, "hunks that a maintainer placed: right / wrong / left to a human", _placed),
        _table(
            scores, Kind.UPSTREAM, "hunks of patches that upstream has: all, recognised, put in all the same", _put_in
        ),
    )


def _table(
    scores: Sequence[CaseScore], kind: Kind, title: str, cells: Callable[[Sequence[HunkScore]], list[str]]
) -> Table:
    made = Table(title=title, title_justify="left")
    made.add_column("package", overflow="fold")
    for name in (*(() if kind is Kind.REFRESHED else ("all", "recognised")), *TOOLS):
        made.add_column(name, justify="right", overflow="fold")
    for package in dict.fromkeys(score.package for score in scores):
        if hunks := hunks_of((score for score in scores if score.package == package), kind):
            made.add_row(package, *cells(hunks))
    made.add_section()
    made.add_row("all", *cells(hunks_of(scores, kind)), style="bold")
    return made


def _placed(hunks: Sequence[HunkScore]) -> list[str]:
    return [" / ".join(str(count(hunks, tool)[result]) for result in Result) for tool in TOOLS]


def _put_in(hunks: Sequence[HunkScore]) -> list[str]:
    known = sum(hunk.verdict is Verdict.UPSTREAM for hunk in hunks)
    return [str(len(hunks)), str(known), *(str(count(hunks, tool)[Result.WRONG]) for tool in TOOLS)]


def lines_of(scores: Sequence[CaseScore]) -> list[str]:
    """Return what is wrong, hunk by hunk, and then the promises."""
    wrong = [line for score in scores for line in _wrong(score)]
    return [*wrong, *(f"{'kept' if item.good else 'MISSED'}: {item.text}" for item in _promises(scores))]


def _wrong(score: CaseScore) -> list[str]:
    said = "placed wrong" if score.kind is Kind.REFRESHED else "put in, upstream has it"
    return [
        f"{said}: {score.package}: {score.patch}: {hunk.path} hunk {hunk.hunk}: {hunk.verdict.value}: {hunk.evidence}"
        for hunk in score.hunks
        if hunk.results[OURS] is Result.WRONG
    ]


def to_json(scores: Sequence[CaseScore]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(list(scores)), indent=1) + b"\n"
