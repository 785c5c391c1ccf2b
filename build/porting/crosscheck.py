"""A second opinion: git's own three-way merge of the same hunks."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from build.git import Git
from build.porting.alignment import Alignment
from build.porting.groups import Edit, Placed, apply_edits
from build.porting.hunks import HunkResult, human
from build.series.verdicts import Method, Verdict

_BY_ALIGNMENT = {Method.EXACT, Method.OFFSET, Method.MERGE}


def crosscheck(
    alignment: Alignment, located: Sequence[Placed | None], results: Sequence[HunkResult]
) -> list[HunkResult]:
    """Return `results`, with those left to a human that git merges cleanly to something else.

    git may well find a conflict where lines next to each other changed; that is no objection.
    """
    if alignment.base == alignment.ours:
        return list(results)
    ours = alignment.ours
    pairs = [
        (placed, result)
        for placed, result in zip(located, results, strict=True)
        if placed and result.edits and result.method in _BY_ALIGNMENT and result.verdict is not Verdict.PARTLY
    ]
    together = _merge(alignment, [placed for placed, _ in pairs])
    if together == b"".join(apply_edits(ours, [edit for _, result in pairs for edit in result.edits])):
        return list(results)
    final = list(results)
    for placed, result in pairs:
        single = _merge(alignment, [placed])
        if single is not None and single != b"".join(apply_edits(ours, result.edits)):
            final[placed.number - 1] = human(f"git's three-way merge puts it elsewhere; {result.evidence}")
    return final


def _merge(alignment: Alignment, placed: Sequence[Placed]) -> bytes | None:
    """Return what `git merge-file` makes of some hunks, None where it finds a conflict."""
    edits = [Edit(group.start, group.end, group.added) for item in placed for group in item.groups]
    sides = (alignment.ours, alignment.base, apply_edits(alignment.base, edits))
    with tempfile.TemporaryDirectory(prefix="multiworld-merge-") as folder:
        for name, lines in zip(("ours", "base", "theirs"), sides, strict=True):
            Path(folder, name).write_bytes(b"".join(lines))
        done = Git(Path(folder)).call("merge-file", "-p", "--diff3", "ours", "base", "theirs")
    return None if done.returncode else done.stdout
