"""Parse a text by the tree of one that resembles it: tree-sitter reads again only what differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tree_sitter

#: Lines that may differ, as a share of all: with more, tree-sitter reads the text as quickly from the beginning.
MOST = 0.25

_Lines = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Like:
    """A text that another one resembles.

    Attributes:
        code: the text.
        old: the lines of it (from 0, end excluded) that became `new` in the other one, in order. More lines may differ.
    """

    code: bytes
    old: _Lines = ()
    new: _Lines = ()


def edited(tree: tree_sitter.Tree, like: Like, code: bytes) -> tree_sitter.Tree | None:
    """Return the tree of `like.code`, told where `code` differs; None if it differs too much to be of use."""
    old, new = (BytesIO(text).readlines() for text in (like.code, code))
    changes = list(_changes(old, new, like))
    if sum(max(end - start, len(lines)) for start, end, lines in changes) > MOST * len(old):
        return None
    tree = tree.copy()
    starts = [0, *accumulate(map(len, old))]
    for start, end, lines in reversed(changes):  # so that the numbers of those before stay right
        first = _point(old, start)
        size = sum(map(len, lines))
        tree.edit(starts[start], starts[end], starts[start] + size, first, _point(old, end), _behind(first, lines))
    return tree


def _changes(old: Sequence[bytes], new: Sequence[bytes], like: Like) -> Iterator[tuple[int, int, Sequence[bytes]]]:
    """Yield the lines (start and end) of the old text that differ, with the new ones in their place."""
    at = to = 0
    ends = (len(old), len(old)), (len(new), len(new))
    for (start, end), (new_start, new_end) in zip((*like.old, ends[0]), (*like.new, ends[1]), strict=True):
        same = min(start - at, new_start - to)
        yield from ((at + n, at + n + 1, new[to + n : to + n + 1]) for n in range(same) if old[at + n] != new[to + n])
        if (at + same, to + same) != (end, new_end):
            yield at + same, end, new[to + same : new_end]
        at, to = end, new_end


def _point(lines: Sequence[bytes], at: int) -> tuple[int, int]:
    """Return the row and the column where a line begins; the end of a text may be within its last line."""
    if at == len(lines) and lines and not lines[-1].endswith(b"\n"):
        return at - 1, len(lines[-1])
    return at, 0


def _behind(first: tuple[int, int], lines: Sequence[bytes]) -> tuple[int, int]:
    """Return the row and the column behind lines that begin at `first`."""
    row, column = _point(lines, len(lines))
    return first[0] + row, column + (0 if row else first[1])
