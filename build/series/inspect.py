"""Find where the hunks of a patch belong in a tree, byte for byte: the verdicts of a plain application."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from io import BytesIO

from build.errors import PatchError
from build.git import Git
from build.series.model import ChangeKind, FileChange, Hunk, HunkVerdict, Method, PatchFile, Verdict

NOT_THE_RELEASE = "check that the tree is the release's; a series is moved with regenerate-patch"


@lru_cache(maxsize=128)
def lines_of(data: bytes) -> tuple[bytes, ...]:
    """Return the lines of a file, each with its end; those of the last files are kept: they are asked for again."""
    return tuple(BytesIO(data).readlines())  # split at \n only: a lone \r is content


def occurrences(haystack: Sequence[bytes], needle: Sequence[bytes]) -> list[int]:
    """Return every index at which `needle` begins in `haystack`; none for an empty needle."""
    wanted = tuple(needle)
    starts = (at for at, item in enumerate(haystack) if (item,) == wanted[:1])
    return [at for at in starts if tuple(haystack[at : at + len(wanted)]) == wanted]


def inspect(git: Git, tree: str, patch: PatchFile) -> list[HunkVerdict]:
    """Return a verdict per hunk of `patch` on `tree`; a conflict is reported, not raised."""
    paths = list(dict.fromkeys(change.old_path for change in patch.changes if change.old_path is not None))
    data = dict(zip(paths, git.blobs([f"{tree}:{path}" for path in paths]), strict=True))
    found: list[HunkVerdict] = []
    for change in patch.changes:
        content = data.get(change.old_path or "")
        found += _verdicts(patch.name, change, None if content is None else lines_of(content))
    return found


def _verdicts(name: str, change: FileChange, lines: Sequence[bytes] | None) -> list[HunkVerdict]:
    if change.kind is ChangeKind.ADDED or not change.hunks:
        numbers = range(1, len(change.hunks) + 1) or [0]
        return [HunkVerdict(name, change.path, n, Verdict.CLEAN, Method.EXACT, int(n > 0)) for n in numbers]
    if lines is None:
        gone = HunkVerdict(name, change.path, 0, Verdict.GONE, Method.HUMAN, evidence="no such file in the tree")
        return [replace(gone, hunk=n) for n in range(1, len(change.hunks) + 1)]
    verdicts, shift = [], 0
    for number, (hunk, at, note) in enumerate(locate_all(lines, change.hunks), 1):
        if at is None:
            verdicts.append(HunkVerdict(name, change.path, number, Verdict.CONFLICT, Method.HUMAN, evidence=note))
            continue
        offset = at - hunk.first
        verdict, method = (Verdict.OFFSET, Method.OFFSET) if offset else (Verdict.CLEAN, Method.EXACT)
        verdicts.append(HunkVerdict(name, change.path, number, verdict, method, at + shift + 1, offset, evidence=note))
        shift += len(hunk.new) - len(hunk.old)
    return verdicts


def locate_all(lines: Sequence[bytes], hunks: Iterable[Hunk]) -> Iterator[tuple[Hunk, int | None, str]]:
    """Yield each hunk with its place, or None and why: one after the other, as `locate` finds them."""
    floor = 0
    for hunk in hunks:
        at, note = locate(lines, hunk, floor)
        floor = floor if at is None else at + len(hunk.old)
        yield hunk, at, note


def locate(lines: Sequence[bytes], hunk: Hunk, floor: int = 0) -> tuple[int | None, str]:
    """Find a hunk's old side, byte for byte, from line `floor` (from 0) on, which follows the earlier hunks.

    Returns the index of the line and a note for people. The index is None if the old side is in no place, or in several
    places but not in the expected one.
    """
    old, expected = hunk.old, hunk.first
    if not old:
        fits = expected <= len(lines)
        return (expected, "no context: placed by line number") if fits else (None, "the file is too short")
    if expected >= floor and list(lines[expected : expected + len(old)]) == old:
        return expected, ""
    places = [at for at in occurrences(lines, old) if at >= floor]
    if len(places) == 1:
        return places[0], ""
    if places:
        named = ", ".join(str(at + 1) for at in places[:5])
        return None, f"its old lines are in {len(places)} places (lines {named}), but not in the expected one"
    return None, "its old lines are not in the file"


def _place(patch: PatchFile, item: HunkVerdict) -> str:
    """Return which lines a hunk replaces, and where it is in the patch file."""
    for change in patch.changes:
        if change.path == item.path and 0 < item.hunk <= len(change.hunks):
            hunk = change.hunks[item.hunk - 1]
            last = hunk.old_start + max(len(hunk.old) - 1, 0)
            return f" (lines {hunk.old_start}-{last}; line {hunk.line} of {patch.name})"
    return ""


def require_all_placed(patch: PatchFile, verdicts: list[HunkVerdict]) -> None:
    if bad := [item for item in verdicts if item.verdict.needs_human]:
        lines = (f"{item.path} hunk {item.hunk}: {item.evidence}{_place(patch, item)}" for item in bad)
        raise PatchError(f"{patch.name} does not fit the tree", cause="\n".join(lines), remedy=NOT_THE_RELEASE)
