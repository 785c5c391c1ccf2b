"""Hunks of one patch that stand or fall together: where most of it is upstream, a hunk that still fits is suspect."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from build.series.model import Hunk, PatchFile
from build.series.verdicts import HunkVerdict, Verdict

#: So many hunks that are upstream, and at least as many as still fit, say that upstream has the patch in another form.
MANY = 3
#: Lines that only make names known; a change that needs them is in another hunk.
_HELPER = re.compile(rb"\s*(#\s*include\b|import\b|from\s+\S+\s+import\b|using\s|find_package\s*\()|\s*$")

Place = tuple[str, int]


def suspects(patch: PatchFile, verdicts: Sequence[HunkVerdict]) -> Mapping[Place, str]:
    """Return the hunks (path, number) that a person should see although they fit, each with the reason."""
    upstream = [item for item in verdicts if item.verdict is Verdict.UPSTREAM and item.hunk]
    placed = [item for item in verdicts if _placed(item)]
    if not upstream or not placed:
        return {}
    if len(upstream) >= max(MANY, len(placed)):
        why = f"{len(upstream)} of the patch's {len(verdicts)} hunks are upstream, so this one may be, in another form"
        return {(item.path, item.hunk): why for item in placed}
    helpers = _helpers(patch)
    if all((item.path, item.hunk) in helpers for item in placed):
        why = "it only makes names known, and nothing else of the patch is put in: other hunks are upstream"
        return {(item.path, item.hunk): why for item in placed}
    return {}


def _placed(item: HunkVerdict) -> bool:
    return item.hunk > 0 and not item.verdict.needs_human and item.verdict is not Verdict.UPSTREAM


def _helpers(patch: PatchFile) -> set[Place]:
    """Return the hunks that only add such lines."""
    return {
        (change.old_path or change.path, number)
        for change in patch.changes
        for number, hunk in enumerate(change.hunks, 1)
        if _only_names(hunk)
    }


def _only_names(hunk: Hunk) -> bool:
    return bool(hunk.added) and not hunk.removed and all(_HELPER.match(line) for line in hunk.added)
