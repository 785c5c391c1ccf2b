"""Align the lines of two files, where two of git's diff algorithms agree."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from build.errors import SourceError
from build.git import Git
from build.porting.lines import norm, words


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
    def fresh_words(self) -> list[tuple[bytes, int]]:
        """The words of the lines that only the new file has, each with its line.

        A kept line between two of them counts, too: in new code, a bracket may be aligned with any old one.
        """
        new = [image < 0 for image in self.back]
        sides = zip([False, *new], new, [*new[1:], False], strict=False)
        around = [is_new or (above and below) for above, is_new, below in sides]
        numbers = [n for n, counts in enumerate(around) if counts]
        return [(word, n) for n in numbers for word in words([self.ours[n]])]

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


def align(base: Sequence[bytes], ours: Sequence[bytes]) -> Alignment:
    """Align two files; blanks at line starts and ends do not count, so that re-indented code aligns.

    Histogram and minimal Myers differ where an alignment is ambiguous (repeated blocks, lone brackets). Only what
    they agree on is used.
    """
    return _aligned(tuple(base), tuple(ours))


@lru_cache(maxsize=128)
def _aligned(base: tuple[bytes, ...], ours: tuple[bytes, ...]) -> Alignment:
    known = {line: norm(line) for line in {*base, *ours}}
    base_norm, ours_norm = ([known[line] for line in lines] for lines in (base, ours))
    to = list(range(len(base)))
    if base_norm != ours_norm:
        old, new = (b"\n".join((*lines, b"")) for lines in (base_norm, ours_norm))
        first, second = (_map(old, new, algorithm) for algorithm in ("histogram", "minimal"))
        to = [a if a == b else -1 for a, b in zip(first, second, strict=True)]
    back = [-1] * len(ours)
    for index, target in enumerate(to):
        if target >= 0:
            back[target] = index
    return Alignment(base, ours, to, back, base_norm, ours_norm)


def _map(old: bytes, new: bytes, algorithm: str) -> list[int]:
    """Return for each line of an old file where it is in the new one, -1 for nowhere, by one of git's algorithms.

    Raises:
        SourceError: git failed.
    """
    form = ("--text", "--no-renames", "--no-prefix", "--no-color", f"--diff-algorithm={algorithm}")
    whole = f"--unified={len(old)}"  # all in one hunk, with every line that is kept
    with tempfile.TemporaryDirectory(prefix="multiworld-diff-") as folder:
        for name, data in (("a", old), ("b", new)):
            Path(folder, name).write_bytes(data)
        done = Git(Path(folder)).call("diff", "--no-index", *form, whole, "a", "b")
    if done.returncode not in (0, 1):
        raise SourceError("git diff failed", cause=done.tail)
    to: list[int] = []
    at = 0
    for line in done.stdout.partition(b"\n@@")[2].split(b"\n")[1:-1]:
        to += [] if line[:1] == b"+" else [-1 if line[:1] == b"-" else at]
        at += line[:1] != b"-"
    return to
