"""Hunks of one patch that stand or fall together: where most of it is upstream, a hunk that still fits is suspect."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from build.porting.lines import has_word, imports_only, tokens
from build.series.model import Hunk, HunkVerdict, Method, PatchFile, Verdict

#: From so many hunks that are upstream on, a hunk that fits is suspect: if the patch, or the file, has several times as
#: many of them as of those that fit.
MANY, TIMES, IN_FILE = 3, 4, 2
#: Characters of a line that may be read as a definition; longer ones are data, or minified.
LONGEST = 400
#: Characters of a name that two hunks do not have in common by chance.
LONG_NAME = 16
_NAME = re.compile(rb"[A-Za-z_]\w{3,}")
#: The first line of a function at the margin, a function or class of Python, or a macro: with the name it defines.
_DEFINITION = re.compile(
    rb"[A-Za-z_][\w\s*&:<>]*[\s*&](\w{4,})\s*\([^;{]*(?:\{.*)?$"
    rb"|(\w{4,})\s*\([^;{]*\)\s*$"
    rb"|\s*(?:def|class)\s+(\w{4,})"
    rb"|#\s*define\s+(\w{4,})"
)

Place = tuple[str, int]


def suspects(patch: PatchFile, verdicts: Sequence[HunkVerdict], known: Iterable[bytes]) -> Mapping[Place, str]:
    """Return the hunks (path, number) that a person should see although they fit, each with the reason.

    Args:
        patch: the patch.
        verdicts: what was found for its hunks.
        known: the old tree's files that it changes.
    """
    hunks = hunks_of(patch)
    upstream = [(item.path, item.hunk) for item in verdicts if item.verdict is Verdict.UPSTREAM and item.hunk]
    perhaps = upstream or any(item.verdict.needs_human and item.method is Method.UPSTREAM for item in verdicts)
    # A hunk of a file that upstream renamed as well is known by the new name only.
    placed = [place for place in placed_of(verdicts) if place in hunks]
    if not placed or len(placed_of(verdicts)) == len(verdicts):
        return {}

    def only_names(hunk: Hunk) -> bool:
        return bool(hunk.added) and not hunk.removed and imports_only(hunk.added)

    return {
        **_alone(hunks, placed, lambda hunk: tokens(hunk.added) == tokens(hunk.removed), "changes blanks"),
        **(_alone(hunks, placed, only_names, "makes names known") if perhaps else {}),
        **_of_the_same_names(hunks, placed, upstream, list(known)),
        **_of_many(placed, upstream, len(verdicts)),
    }


def hunks_of(patch: PatchFile) -> dict[Place, Hunk]:
    return {
        (change.old_path or change.path, number): hunk
        for change in patch.changes
        for number, hunk in enumerate(change.hunks, 1)
    }


def placed_of(verdicts: Iterable[HunkVerdict]) -> list[Place]:
    found = (item for item in verdicts if item.hunk > 0 and item.verdict is not Verdict.UPSTREAM)
    return [(item.path, item.hunk) for item in found if not item.verdict.needs_human]


def _of_many(placed: Sequence[Place], upstream: Sequence[Place], every: int) -> dict[Place, str]:
    if len(upstream) < MANY:
        return {}
    fits, theirs = (Counter(path for path, _ in places) for places in (placed, upstream))
    most = len(upstream) >= TIMES * len(placed)
    why = f"{len(upstream)} of the patch's {every} hunks are upstream, so this one may be, in another form"
    return {place: why for place in placed if most or theirs[place[0]] >= IN_FILE * fits[place[0]]}


def _of_the_same_names(
    hunks: Mapping[Place, Hunk], placed: Sequence[Place], upstream: Sequence[Place], known: Sequence[bytes]
) -> dict[Place, str]:
    """Return the placed hunks with a name of a hunk that is upstream: they are parts of one change."""
    theirs = {name: place for place in reversed(upstream) if place in hunks for name in _own(hunks[place])}
    found = {}
    for place in placed:
        every = _names(hunks[place]).intersection(theirs)
        if shared := sorted(name for name in every if not any(has_word(data, name) for data in known)):
            path, number = theirs[shared[0]]
            name = shared[0].decode("ascii", "replace")
            found[place] = f"hunk {number} of {path} brings in {name}, and is upstream: so this may be"
    return found


def _own(hunk: Hunk) -> set[bytes]:
    """Return the names that say which change a hunk is part of: those it defines, and long ones."""
    return defined(hunk.added) | {name for name in _names(hunk) if len(name) >= LONG_NAME}


def defined(lines: Iterable[bytes]) -> set[bytes]:
    found = (match for line in lines if len(line) <= LONGEST and (match := _DEFINITION.match(line)))
    return {name for match in found for name in match.groups() if name}


def _names(hunk: Hunk) -> set[bytes]:
    return {name for line in hunk.added for name in _NAME.findall(line)}


def _alone(
    hunks: Mapping[Place, Hunk], placed: Sequence[Place], kind: Callable[[Hunk], bool], does: str
) -> dict[Place, str]:
    """Return the placed hunks if all are of a kind that serves others: those are upstream, or not put in."""
    if not all(kind(hunks[place]) for place in placed):
        return {}
    return dict.fromkeys(placed, f"it only {does}, and nothing else of the patch is put in")
