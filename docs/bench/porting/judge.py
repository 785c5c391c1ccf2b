"""Compare what a tool made of a patch with what the maintainer made of it, hunk by hunk."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from build.git import Git
from build.porting.groups import Edit, apply_edits
from build.porting.lines import norm
from build.porting.trees import Tree
from build.series.inspect import lines_of, occurrences
from docs.bench.porting.cases import RealCase, RealHunk, data_of
from docs.bench.porting.tools import Result

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def judge(case: RealCase, files: Mapping[str, bytes]) -> list[Result]:
    """Return a result for each of the case's scored hunks.

    `files` are those of `case.paths` as the tool left them, with the new tree's side of every conflict. A hunk is right
    where exactly the maintainer's edit was made. It is wrong where another edit has some of its lines; of a patch that
    upstream has, every edit is wrong.
    """
    edits = {path: _changes(case, path, files) for path in case.paths | set(files)}
    results: dict[int, Result] = {}
    for number, hunk in enumerate(case.scored):
        wanted = _wanted(case, hunk) if hunk.kept else None
        if wanted is not None and (wanted <= edits[hunk.new_path] or _same_text(case, hunk, files)):
            results[number] = Result.RIGHT
            edits[hunk.new_path] -= wanted
    added = _telling(line for found in edits.values() for edit in found for line in edit.lines)
    removed = _telling(line for path, found in edits.items() for edit in found for line in _lines(case, path, edit))
    for number, hunk in enumerate(case.scored):
        if number not in results:
            results[number] = Result.WRONG if _concerned(hunk, added, removed) else Result.LEFT
    return [results[number] for number in range(len(case.scored))]


def files_of(tree: Tree, paths: Iterable[str]) -> dict[str, bytes]:
    """Return these files of a tree, as far as it has them."""
    states = {path: tree.read(path) for path in paths}
    return {path: state.data for path, state in states.items() if state is not None}


def _changes(case: RealCase, path: str, files: Mapping[str, bytes]) -> set[Edit]:
    return set(edits_between(data_of(case.new, path), files.get(path, b"")))


def _wanted(case: RealCase, hunk: RealHunk) -> set[Edit]:
    """Return the maintainer's edits of a hunk as a diff shows them, which may begin at another of several equal lines.

    Edits of neighbouring hunks may be one edit in a diff: then what all his edits are there is wanted.
    """
    data = data_of(case.new, hunk.new_path)
    lines = lines_of(data)
    alone = set(edits_between(data, b"".join(apply_edits(lines, hunk.edits))))
    every = {edit for item in case.hunks if item.new_path == hunk.new_path for edit in item.edits}
    together = set(edits_between(data, b"".join(apply_edits(lines, sorted(every, key=lambda e: (e.start, e.end))))))
    return alone if alone <= together else {edit for edit in together if _near(edit, alone)}


def _same_text(case: RealCase, hunk: RealHunk, files: Mapping[str, bytes]) -> bool:
    """Return whether a tool's file has the maintainer's lines and their neighbours, however a diff is divided."""
    lines = lines_of(data_of(case.new, hunk.new_path))
    start, end = max(0, hunk.edits[0].start - 3), min(len(lines), hunk.edits[-1].end + 3)
    inner = [Edit(edit.start - start, edit.end - start, edit.lines) for edit in hunk.edits]
    wanted = apply_edits(lines[start:end], inner)
    made = lines_of(files.get(hunk.new_path, b""))
    return len(occurrences(made, wanted)) > len(occurrences(lines, wanted))


def _near(edit: Edit, others: Collection[Edit]) -> bool:
    return any(edit.start <= other.end and other.start <= edit.end for other in others)


def _lines(case: RealCase, path: str, edit: Edit) -> list[bytes]:
    """Return the lines that an edit removes."""
    return list(lines_of(data_of(case.new, path))[edit.start : edit.end])


def _concerned(hunk: RealHunk, added: Collection[bytes], removed: Collection[bytes]) -> bool:
    """Return whether edits that no right hunk explains have lines of this one."""
    mine = _telling(hunk.hunk.added)
    return bool(mine.intersection(added)) if mine else bool(_telling(hunk.hunk.removed).intersection(removed))


def _telling(lines: Iterable[bytes]) -> set[bytes]:
    return {norm(line) for line in lines if re.search(rb"\w\w", line)}


@lru_cache(maxsize=256)
def edits_between(old: bytes, new: bytes) -> tuple[Edit, ...]:
    """Return the edits that make `new` of `old`, by git's minimal diff."""
    if old == new:
        return ()
    with tempfile.TemporaryDirectory(prefix="multiworld-judge-") as folder:
        for name, data in (("a", old), ("b", new)):
            Path(folder, name).write_bytes(data)
        done = Git(Path(folder)).call("diff", "--no-index", "--text", "-U0", "--minimal", "--no-color", "a", "b")
    lines = lines_of(new)
    found = []
    for match in _HUNK.finditer(done.stdout):
        start, count = int(match[1]), 1 if match[2] is None else int(match[2])
        first, size = int(match[3]), 1 if match[4] is None else int(match[4])
        at = start - 1 if count else start
        into = first - 1 if size else first
        found.append(Edit(at, at + count, tuple(lines[into : into + size])))
    return tuple(found)
