"""git's own merge of a hunk: its diffs tell it where changes are apart, and the command where they touch."""

from __future__ import annotations

import tempfile
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from build.git import Git
from build.porting.diffs import Change, diffs
from build.porting.groups import Edit, Placed, apply_edits

#: Number of diffs that are kept.
KEPT = 128
#: The diff that `git merge-file` makes by itself; it has context, see `diffs`.
_AS_MERGED = ("--diff-algorithm=myers", "--no-indent-heuristic")

_Lines = Sequence[bytes]
_Pair = tuple[tuple[bytes, ...], tuple[bytes, ...]]
_LAST: dict[_Pair, list[Change]] = {}


def prepare(files: Iterable[tuple[_Lines, _Lines, _Lines]]) -> None:
    """Make the diffs of several files (old, new, and old with the patch) at once, so that git is started once."""
    _scripts([(base, side) for base, *sides in files for side in sides])


def _scripts(pairs: Iterable[tuple[_Lines, _Lines]]) -> list[list[Change]]:
    wanted: list[_Pair] = [(tuple(old), tuple(new)) for old, new in pairs]
    known = [_LAST.get(pair) for pair in wanted]  # asked once: each look reads all lines
    fresh = [pair for pair, found in zip(wanted, known, strict=True) if found is None]
    [made] = diffs([(b"".join(a), b"".join(b)) for a, b in fresh], _AS_MERGED, context=1)
    _LAST.update(zip(fresh, made, strict=True))
    while len(_LAST) > KEPT:
        del _LAST[next(iter(_LAST))]
    rest = iter(made)
    return [next(rest) if found is None else found for found in known]


@dataclass(frozen=True, slots=True)
class Merge:
    """The sides of a merge: lines of the three files, and how the two others differ from `base`."""

    base: _Lines
    ours: _Lines
    theirs: _Lines
    mine: Sequence[Change]
    its: Sequence[Change]

    @classmethod
    def of(cls, base: _Lines, ours: _Lines, hunks: Iterable[Placed]) -> Merge:
        theirs = apply_edits(base, [edit for placed in hunks for edit in _own(placed)])
        return cls(base, ours, theirs, *_scripts([(base, ours), (base, theirs)]))

    def differs(self, placed: Placed, edits: Sequence[Edit]) -> bool:
        """Return whether git merges a hunk cleanly to something else than `edits` of the new file."""
        found = self._edits(placed)
        if found == list(edits):
            return False
        merged = _by_git(self.base, self.ours, placed) if found is None else _joined(self.ours, found)
        return merged is not None and merged != _joined(self.ours, edits)

    def _edits(self, placed: Placed) -> list[Edit] | None:
        """Return git's edits of the new file for a hunk; None where they touch a change, or are not in its lines."""
        own = [
            Edit(change.start, change.end, tuple(self.theirs[change.new_start : change.new_end]))
            for change in self.its
            if placed.start <= change.start and change.end <= placed.end
        ]
        old = self.base[placed.start : placed.end]
        if apply_edits(old, _moved(own, -placed.start)) != apply_edits(old, _moved(_own(placed), -placed.start)):
            return None
        found: list[Edit] = []
        for edit in own:
            if (by := self._shift(edit)) is None:
                return None
            found += _moved([edit], by)
        return found

    def _shift(self, edit: Edit) -> int | None:
        """Return by how many lines the place of an edit moved in the new file; None where a change touches it."""
        at = bisect_left(self.mine, edit.start, key=attrgetter("end"))
        if at < len(self.mine) and self.mine[at].start <= edit.end:
            return None
        return self.mine[at - 1].new_end - self.mine[at - 1].end if at else 0


def _own(placed: Placed) -> list[Edit]:
    return [Edit(group.start, group.end, group.added) for group in placed.groups]


def _moved(edits: Iterable[Edit], by: int) -> list[Edit]:
    return [Edit(edit.start + by, edit.end + by, edit.lines) for edit in edits]


def _joined(lines: _Lines, edits: Sequence[Edit]) -> bytes:
    return b"".join(apply_edits(lines, edits))


def _by_git(base: _Lines, ours: _Lines, placed: Placed) -> bytes | None:
    """Return what `git merge-file` makes of a hunk, None where it finds a conflict."""
    theirs = apply_edits(base, _own(placed))
    with tempfile.TemporaryDirectory(prefix="multiworld-merge-") as folder:
        for name, lines in (("ours", ours), ("base", base), ("theirs", theirs)):
            Path(folder, name).write_bytes(b"".join(lines))
        done = Git(Path(folder)).call("merge-file", "-p", "--diff3", "ours", "base", "theirs")
    return None if done.returncode else done.stdout
