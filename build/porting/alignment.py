"""Align the lines of two files, where two of git's diff algorithms agree."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

from build.errors import SourceError
from build.git import Git
from build.porting.lines import words, words_by_line
from build.series.inspect import Text

#: Number of alignments that are kept: half of them for the files of a patch, half for functions in them.
KEPT = 128
#: The diff of one file of a folder.
_FILE = re.compile(rb"^diff --git a/(\d+) b/\1\n((?:(?!diff --git ).*\n)*)", re.MULTILINE)
_HUNK = re.compile(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", re.MULTILINE)


@dataclass(frozen=True)
class Alignment:
    """Two files, line by line.

    Attributes:
        base: lines of the old file; `ours` those of the new one.
        to: for each old line the index of the new line it became, -1 for none or where algorithms disagree.
        back: the inverse.
        base_norm: the old lines normalised (`build.porting.lines.norm`); `ours_norm` the new ones.
    """

    base: Sequence[bytes]
    ours: Sequence[bytes]
    to: Sequence[int]
    back: Sequence[int]
    base_norm: Sequence[bytes]
    ours_norm: Sequence[bytes]

    @cached_property
    def once(self) -> frozenset[bytes]:
        """The normalised lines that each file has exactly once."""
        counts = Counter(self.base_norm), Counter(self.ours_norm)
        return frozenset(line for line, count in counts[0].items() if count == 1 == counts[1][line])

    @cached_property
    def vocabulary(self) -> frozenset[bytes]:
        return frozenset(words(self.base))

    @cached_property
    def base_solid(self) -> tuple[list[int], list[bytes]]:
        """The old lines that are not blank, normalised: their numbers, and the lines."""
        return _solid(self.base_norm)

    @cached_property
    def ours_solid(self) -> tuple[list[int], list[bytes]]:
        """The new lines that are not blank, normalised: their numbers, and the lines."""
        return _solid(self.ours_norm)

    @cached_property
    def fresh_words(self) -> list[tuple[bytes, int]]:
        """The words of the lines that only the new file has, each with its line.

        A kept line between two of them counts, too: in new code, a bracket may be aligned with any old one.
        """
        new = [image < 0 for image in self.back]
        sides = zip([False, *new], new, [*new[1:], False], strict=False)
        around = [is_new or (above and below) for above, is_new, below in sides]
        numbers = [n for n, counts in enumerate(around) if counts]
        return [(word, numbers[n]) for word, n in words_by_line([self.ours[n] for n in numbers])]

    @cached_property
    def fresh_counts(self) -> Counter[bytes]:
        return Counter([word for word, _ in self.fresh_words])

    @cached_property
    def fresh_runs(self) -> list[tuple[int, int]]:
        """The runs of lines that only the new file has (end excluded); a run may have gaps of two lines."""
        found: list[tuple[int, int]] = []
        for at, origin in enumerate(self.back):
            if origin >= 0:
                continue
            if found and at - found[-1][1] <= 2:
                found[-1] = found[-1][0], at + 1
            else:
                found.append((at, at + 1))
        return found

    def before(self, at: int) -> tuple[int, int]:
        """Return the nearest old line before `at` that has a counterpart, and that one; (-1, -1) is the start."""
        for index in range(at - 1, -1, -1):
            if self.to[index] >= 0:
                return index, self.to[index]
        return -1, -1

    def after(self, at: int) -> tuple[int, int]:
        """Return the nearest old line from `at` on that has a counterpart, and that one; else the ends."""
        for index in range(at, len(self.base)):
            if self.to[index] >= 0:
                return index, self.to[index]
        return len(self.base), len(self.ours)


@lru_cache(maxsize=128)
def text_of(data: bytes) -> Text:
    """Return a file's lines; those of the last files are kept, since each is asked for several times."""
    return Text(data)


def _solid(lines: Sequence[bytes]) -> tuple[list[int], list[bytes]]:
    return [n for n, line in enumerate(lines) if line], [line for line in lines if line]


_Pair = tuple[tuple[bytes, ...], tuple[bytes, ...]]
_LAST: dict[_Pair, Alignment] = {}


def align(base: Sequence[bytes], ours: Sequence[bytes]) -> Alignment:
    """Align two files; blanks at line starts and ends do not count, so that re-indented code aligns.

    Histogram and minimal Myers differ where an alignment is ambiguous (repeated blocks, lone brackets). Only what
    they agree on is used.
    """
    key = tuple(base), tuple(ours)
    if (known := _LAST.pop(key, None)) is None:
        return align_all([key])[0]
    _LAST[key] = known  # the last one now; most are known, and each look reads all lines
    return known


def align_all(pairs: Sequence[tuple[Sequence[bytes], Sequence[bytes]]]) -> list[Alignment]:
    """Align several pairs of files at once: git is started for all of them together, and the last ones are kept."""
    wanted = [(tuple(base), tuple(ours)) for base, ours in pairs]
    found = {key: _LAST.pop(key) for key in wanted if key in _LAST}
    found |= _aligned([key for key in wanted if key not in found])
    _LAST.update(found)
    while len(_LAST) > KEPT:
        del _LAST[next(iter(_LAST))]
    return [found[key] for key in wanted]


def _aligned(pairs: Sequence[_Pair]) -> dict[_Pair, Alignment]:
    normal = {}
    for base, ours in pairs:
        known = {line: b" ".join(line.split()) for line in {*base, *ours}}  # `norm`, of most lines of a patch's files
        base_norm = [known[line] for line in base]
        normal[base, ours] = base_norm, base_norm if base == ours else [known[line] for line in ours]
    changed = {key: lines for key, lines in normal.items() if lines[0] != lines[1]}
    files = [(b"\n".join((*old, b"")), b"\n".join((*new, b""))) for old, new in changed.values()]
    agreed = {}
    for key, first, second in zip(changed, *diffs(files, "histogram", "minimal"), strict=True):
        images = zip(_map(first, len(key[0])), _map(second, len(key[0])), strict=True)
        agreed[key] = [a if a == b else -1 for a, b in images]
    return {key: _alignment(key, agreed.get(key, range(len(key[0]))), *lines) for key, lines in normal.items()}


def _alignment(pair: _Pair, to: Sequence[int], base_norm: Sequence[bytes], ours_norm: Sequence[bytes]) -> Alignment:
    back = [-1] * len(pair[1])
    for index, target in enumerate(to):
        if target >= 0:
            back[target] = index
    return Alignment(*pair, list(to), back, base_norm, ours_norm)


def _map(changes: Sequence[Change], size: int) -> list[int]:
    """Return for each of an old file's `size` lines where it is in the new file, -1 for nowhere."""
    to: list[int] = []
    shift = 0
    for change in changes:
        to += range(len(to) + shift, change.start + shift)
        to += [-1] * (change.end - change.start)
        shift = change.new_end - change.end
    return [*to, *range(len(to) + shift, size + shift)]


class Change(NamedTuple):
    """Lines `start..end` of the old file became lines `new_start..new_end` (from 0, ends excluded)."""

    start: int
    end: int
    new_start: int
    new_end: int


def diffs(pairs: Sequence[tuple[bytes, bytes]], *algorithms: str) -> list[list[list[Change]]]:
    """Return git's changes between two files, for each of `pairs`, by each algorithm, with one command for each.

    Raises:
        SourceError: git failed.
    """
    differing = [number for number, (old, new) in enumerate(pairs) if old != new]
    if not differing:
        return [[[] for _ in pairs] for _ in algorithms]
    with tempfile.TemporaryDirectory(prefix="multiworld-diff-") as folder:
        for side, name in enumerate("ab"):
            Path(folder, name).mkdir()
            for number in differing:
                Path(folder, name, str(number)).write_bytes(pairs[number][side])
        return [_changes(Path(folder), algorithm, len(pairs)) for algorithm in algorithms]


def _changes(folder: Path, algorithm: str, count: int) -> list[list[Change]]:
    """Return git's changes between the files in the folders `a` and `b`, which are called by their numbers."""
    form = ("--text", "--unified=0", "--no-renames", "--no-prefix", "--no-color", f"--diff-algorithm={algorithm}")
    done = Git(folder).call("diff", "--no-index", *form, "a", "b")
    if done.returncode not in (0, 1):
        raise SourceError("git diff failed", cause=done.tail)
    found: list[list[Change]] = [[] for _ in range(count)]
    # A line of a file has "+" or "-" before it, so these are git's own.
    for number, diff in _FILE.findall(done.stdout):
        found[int(number)] = [_change(match) for match in _HUNK.finditer(diff)]
    return found


def _change(match: re.Match[bytes]) -> Change:
    """Return the change of a hunk's head; where it has no lines, git names the line before them."""
    old, new = int(match[1]), int(match[3])
    old_count = 1 if match[2] is None else int(match[2])
    new_count = 1 if match[4] is None else int(match[4])
    start, new_start = old - (old_count > 0), new - (new_count > 0)
    return Change(start, start + old_count, new_start, new_start + new_count)
