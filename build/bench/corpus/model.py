"""The pieces of a generated case."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from build.series.verdicts import Verdict

_ids = itertools.count()


@dataclass(frozen=True, slots=True)
class Line:
    """A line with an identity: `key` stays when the text or the place changes."""

    text: bytes
    key: int = field(default_factory=lambda: next(_ids))


def lines_of(data: bytes) -> list[Line]:
    return [Line(text + b"\n") for text in data.rstrip(b"\n").split(b"\n")]


def join(lines: Iterable[Line]) -> bytes:
    return b"".join(line.text for line in lines)


@dataclass(frozen=True, slots=True)
class Change:
    """Replace the lines `removed` by `added`, between the lines `after` and `before`; lines are named by key."""

    after: int
    before: int
    removed: tuple[int, ...]
    added: tuple[Line, ...]
    mark: bytes


@dataclass(frozen=True, slots=True)
class Expected:
    """The right outcome of one change.

    Attributes:
        scenario: what upstream did there.
        mark: a word that only its lines have.
        verdicts: those that are right.
        path: the file of the new tree it belongs to.
        segment: lines that are together in a right result; empty when a human has to decide.
        before: the marked lines that the new file has already; `after` those of a right result.
    """

    scenario: str
    mark: bytes
    verdicts: frozenset[Verdict]
    path: str
    segment: tuple[bytes, ...]
    before: tuple[bytes, ...]
    after: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One patch to be ported.

    Attributes:
        name: for messages.
        old: the old tree; `new` the new one; `patched` the old one with the patch; all by path.
        expected: one per hunk, in the order of the file.
    """

    name: str
    old: dict[str, bytes]
    new: dict[str, bytes]
    patched: dict[str, bytes]
    expected: tuple[Expected, ...]


def place(lines: Sequence[Line], key: int) -> int:
    """Return the index of the line with `key`; ValueError if it is gone."""
    return [line.key for line in lines].index(key)


def perform(lines: Sequence[Line], change: Change, indent: bytes = b"") -> list[Line]:
    gone = {*change.removed, *(line.key for line in change.added)}
    kept = [line for line in lines if line.key not in gone]
    if change.after >= 0 and any(line.key == change.after for line in kept):
        at = place(kept, change.after) + 1
    else:
        at = place(kept, change.before)
    added = [Line(indent + line.text if line.text.strip() else line.text, line.key) for line in change.added]
    return [*kept[:at], *added, *kept[at:]]
