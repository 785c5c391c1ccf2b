"""Measure one package, or take what an earlier run found: other tools do not change, this engine does."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from build import paths
from build.bench.corpus.tools import OTHERS
from build.bench.real import stacks
from build.bench.real.cases import Kind, RealCase, cases
from build.bench.real.judge import Result, judge
from build.bench.real.packages import Package
from build.bench.real.tools import others, ours
from build.porting.engine import PatchState
from build.seals import read_record, write_record
from build.series.verdicts import Verdict

OURS = "regenerate-patch"
#: Code that makes and judges cases, and code that decides what this project's engine makes of them.
_JUDGE = ("bench/real/cases.py", "bench/real/judge.py", "bench/real/tools.py", "bench/corpus/tools.py")
_ENGINE = (*_JUDGE, "bench/real/measure.py", "porting", "series", "git.py")


class HunkScore(msgspec.Struct, frozen=True):
    """What each tool made of one hunk; verdict and evidence are this project's."""

    path: str
    hunk: int
    results: dict[str, Result]
    verdict: Verdict
    evidence: str


class CaseScore(msgspec.Struct, frozen=True):
    """One patch: its scored hunks, what this project calls it, and the processor time that took, in seconds."""

    package: str
    patch: str
    kind: Kind
    hunks: tuple[HunkScore, ...]
    state: PatchState
    seconds: float

    @property
    def whole(self) -> bool:
        """Whether every hunk was recognised as upstream."""
        return all(item.verdict is Verdict.UPSTREAM for item in self.hunks)


class _Others(msgspec.Struct, frozen=True):
    """The results of the other tools, by patch and tool, in the order of the hunks."""

    results: dict[str, dict[str, list[Result]]]


class _Scores(msgspec.Struct, frozen=True):
    scores: tuple[CaseScore, ...]


def measure(package: Package) -> tuple[CaseScore, ...]:
    """Return the scores of one package; only what is not known yet is measured."""
    folder = stacks.rebuild(package)
    record = _record(package, "ours", _ENGINE)
    known = read_record(record, _Scores)
    if known is None:
        found = cases(folder)
        theirs = _theirs(package, found)
        known = _Scores(tuple(_score(package, case, theirs.results[case.patch.name]) for case in found))
        write_record(record, known)
    return known.scores


def _theirs(package: Package, found: Sequence[RealCase]) -> _Others:
    record = _record(package, "others", _JUDGE)
    known = read_record(record, _Others)
    if known is None:
        made = {}
        for case in found:
            made[case.patch.name] = {name: judge(case, files) for name, files in others(case).items()}
        known = _Others(made)
        write_record(record, known)
    return known


def _score(package: Package, case: RealCase, theirs: dict[str, list[Result]]) -> CaseScore:
    ported = ours(case)
    mine = judge(case, ported.files)
    verdicts = {(item.path, item.hunk): item for item in ported.port.verdicts}
    hunks = []
    for number, hunk in enumerate(case.scored):
        verdict = verdicts[hunk.path, hunk.number]
        result = mine[number]
        if hunk.kept and verdict.verdict is Verdict.UPSTREAM:
            result = Result.WRONG  # dropped, and the maintainer still needs it
        results = {OURS: result} | {name: theirs[name][number] for name in OTHERS}
        hunks.append(HunkScore(hunk.path, hunk.number, results, verdict.verdict, verdict.evidence))
    return CaseScore(
        package.title, case.patch.name, case.kind, tuple(hunks), ported.port.state, round(ported.seconds, 3)
    )


def _record(package: Package, what: str, code: Sequence[str]) -> Path:
    """Return where results are kept: under another name for other sources, or other code that makes them."""
    digest = hashlib.sha256(stacks.path(package).name.encode())
    for name in code:
        top = Path(paths.REPO, "build", name)
        for file in [top] if top.is_file() else sorted(top.rglob("*.py")):
            digest.update(file.read_bytes())
    key = digest.hexdigest()[:16]
    return paths.cache("porting-bench", "results") / f"{package.name}-{package.new.suite}-{what}-{key}.json"
