"""Align the lines of two files, where two of git's diff algorithms agree."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from build.git import Git
from build.porting.lines import norm, words
from build.porting.names import used

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
        """The words of the old file."""
        return frozenset(words(self.base))

    @cached_property
    def names(self) -> tuple[frozenset[bytes], frozenset[bytes]]:
        """The names that the code of the old and of the new file uses."""
        return frozenset(used(self.base)), frozenset(used(self.ours))

    @cached_property
    def fresh_words(self) -> list[tuple[bytes, int]]:
        """The words of the lines that only the new file has, each with its line.

        A kept line between two of them counts, too: in new code, a bracket may be aligned with any old one.
        """
        new = [image < 0 for image in self.back]
        around = [is_new or (any(new[max(0, n - 1) : n]) and any(new[n + 1 : n + 2])) for n, is_new in enumerate(new)]
        return [(word, n) for n, line in enumerate(self.ours) if around[n] for word in words([line])]

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
    return _align(tuple(base), tuple(ours))


@lru_cache(maxsize=64)
def _align(base: tuple[bytes, ...], ours: tuple[bytes, ...]) -> Alignment:
    base_norm, ours_norm = [norm(line) for line in base], [norm(line) for line in ours]
    if base_norm == ours_norm:
        identity = list(range(len(base)))
        return Alignment(base, ours, identity, identity, base_norm, ours_norm)
    first, second = (_map(base_norm, ours_norm, name) for name in ("histogram", "minimal"))
    to = [a if a == b else -1 for a, b in zip(first, second, strict=True)]
    back = [-1] * len(ours)
    for index, target in enumerate(to):
        if target >= 0:
            back[target] = index
    return Alignment(base, ours, to, back, base_norm, ours_norm)


def _map(base: Sequence[bytes], ours: Sequence[bytes], algorithm: str) -> list[int]:
    with tempfile.TemporaryDirectory(prefix="multiworld-align-") as folder:
        for name, lines in (("a", base), ("b", ours)):
            Path(folder, name).write_bytes(b"".join(line + b"\n" for line in lines))
        done = Git(Path(folder)).call(
            "diff", "--no-index", "--text", "--unified=0", f"--diff-algorithm={algorithm}", "--no-color", "a", "b"
        )
    to: list[int] = []
    shift = 0
    for match in _HUNK.finditer(done.stdout):
        old, new = int(match[1]), int(match[3])
        old_count = 1 if match[2] is None else int(match[2])
        new_count = 1 if match[4] is None else int(match[4])
        start = old - 1 if old_count else old
        shift = (new - 1 if new_count else new) - start
        to += [index + shift for index in range(len(to), start)]
        to += [-1] * old_count
        shift += new_count - old_count
    # Equal lines after a difference keep the distance that it left.
    return to + [index + shift for index in range(len(to), len(base))]
