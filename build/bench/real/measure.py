"""Measure one package, or take what an earlier run found: other tools do not change, this engine does."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from build import paths
from build.bench.corpus.tools import OTHERS
from build.bench.real import stacks
from build.bench.real.cases import Kind, RealCase, RealHunk, cases
from build.bench.real.judge import Result, base_files, edits_between, judge
from build.bench.real.packages import Package
from build.bench.real.tools import others, ours
from build.porting.engine import PatchState
from build.porting.groups import Edit, apply_edits
from build.seals import read_record, write_record
from build.series.inspect import Text
from build.series.verdicts import Verdict

OURS = "regenerate-patch"


class HunkScore(msgspec.Struct, frozen=True):
    """What each tool made of one hunk; verdict and evidence are this project's."""

    path: str
    hunk: int
    results: dict[str, Result]
    verdict: Verdict
    evidence: str


class CaseScore(msgspec.Struct, frozen=True):
    """One patch: its scored hunks, and what this project says of it.

    Attributes:
        seconds: processor time of its port.
        verdicts: counts of the verdicts of all its hunks, scored or not.
    """

    package: str
    patch: str
    kind: Kind
    hunks: tuple[HunkScore, ...]
    state: PatchState
    seconds: float
    verdicts: dict[Verdict, int] = {}

    @property
    def whole(self) -> bool:
        """Whether every hunk was recognised as upstream."""
        return all(item.verdict is Verdict.UPSTREAM for item in self.hunks)


class _Others(msgspec.Struct, frozen=True):
    """What the other tools made of the new tree's files: edits by patch, tool and path."""

    edits: dict[str, dict[str, dict[str, tuple[Edit, ...]]]]


class _Scores(msgspec.Struct, frozen=True):
    scores: tuple[CaseScore, ...]


def measure(package: Package) -> tuple[CaseScore, ...]:
    """Return the scores of one package; only what is not known yet is measured."""
    folder = stacks.rebuild(package)
    record = _record(package, "ours", _ENGINE_KEY)
    known = read_record(record, _Scores)
    if known is None:
        found = cases(folder)
        theirs = _theirs(package, found)
        known = _Scores(tuple(_score(package, case, theirs.edits[case.patch.name]) for case in found))
        write_record(record, known)
    return known.scores


def _theirs(package: Package, found: Sequence[RealCase]) -> _Others:
    record = _record(package, "others", _TOOLS_KEY)
    known = read_record(record, _Others)
    if known is None:
        known = _Others(
            {case.patch.name: {n: _edits(case, files) for n, files in others(case).items()} for case in found}
        )
        write_record(record, known)
    return known


def _edits(case: RealCase, files: Mapping[str, bytes]) -> dict[str, tuple[Edit, ...]]:
    base = base_files(case)
    every = {path: edits_between(base.get(path, b""), files.get(path, b"")) for path in {*base, *files}}
    return {path: edits for path, edits in every.items() if edits}


def _files(case: RealCase, edits: Mapping[str, Sequence[Edit]]) -> dict[str, bytes]:
    base = base_files(case)
    changed = {path: b"".join(apply_edits(Text(base.get(path, b"")).lines, found)) for path, found in edits.items()}
    return base | changed


def _score(package: Package, case: RealCase, theirs: Mapping[str, Mapping[str, Sequence[Edit]]]) -> CaseScore:
    ported = ours(case)
    results = {OURS: judge(case, ported.files)}
    results |= {name: judge(case, _files(case, theirs[name])) for name in OTHERS}
    verdicts = {(item.path, item.hunk): item for item in ported.port.verdicts}
    hunks = []
    for number, hunk in enumerate(case.scored):
        verdict = verdicts[hunk.path, hunk.number]
        found = {name: every[number] for name, every in results.items()}
        found[OURS] = _honest(found[OURS], hunk, verdict.verdict)
        hunks.append(HunkScore(hunk.path, hunk.number, found, verdict.verdict, verdict.evidence))
    counts = Counter(item.verdict for item in ported.port.verdicts)
    return CaseScore(
        package.title,
        case.patch.name,
        case.kind,
        tuple(hunks),
        ported.port.state,
        round(ported.seconds, 3),
        dict(counts),
    )


def _honest(result: Result, hunk: RealHunk, verdict: Verdict) -> Result:
    """Return a result of this project's with what its verdict says."""
    if hunk.kept and verdict is Verdict.UPSTREAM:
        return Result.WRONG  # dropped, and the maintainer still needs it
    if result is Result.WRONG and (verdict.needs_human or verdict is Verdict.UPSTREAM):
        return Result.LEFT  # another hunk of the patch has the same lines
    return result


def _record(package: Package, what: str, key: str) -> Path:
    """Return where results are kept: under another name for other sources, or other code that makes them."""
    digest = hashlib.sha256(f"{stacks.path(package).name} {key}".encode()).hexdigest()
    return paths.cache("porting-bench", "results") / f"{package.name}-{package.new.suite}-{what}-{digest[:16]}.json"


def _digest(names: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for name in names:
        top = Path(paths.REPO, "build", name)
        for file in [top] if top.is_file() else sorted(top.rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


#: Code that makes the cases and runs the other tools; and all that decides a score. As it was when it was loaded.
_TOOLS = ("bench/real/cases.py", "bench/real/tools.py", "bench/corpus/tools.py")
_TOOLS_KEY = _digest(_TOOLS)
_ENGINE_KEY = _digest((*_TOOLS, "bench/real/judge.py", "bench/real/measure.py", "porting", "series", "git.py"))
