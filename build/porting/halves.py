"""Notice that one half of a change was placed without the other: memory is freed that nothing allocates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from build.porting.alignment import Alignment
from build.porting.hunks import HunkResult, human
from build.porting.names import code, declared, used
from build.series.model import Hunk
from build.series.verdicts import Verdict

_CALL = re.compile(rb"(\w+)[ \t]*\(")
#: The first line of a function's definition, which calls nothing.
_DEFINITION = re.compile(
    rb"\s*(?!return\b|await\b|yield\b|if\b|while\b|else\b)(?:[A-Za-z_]\w*[ \t*]+)+\w+[ \t]*\([^;=]*$"
)
#: Words in the names of functions that belong together: what one does the other undoes.
_KINDS = tuple(
    (re.compile(first, re.IGNORECASE), re.compile(second, re.IGNORECASE))
    for first, second in (
        (rb"alloc|dup|(?:^|_)new|create", rb"free|delete|destroy"),
        (rb"(?<!un)lock", rb"unlock"),
        (rb"(?:^|_)f?open", rb"close"),
        (rb"(?<!un)(?<!de)ref(?:$|_)|incref|acquire", rb"unref|decref|release"),
        (rb"push", rb"pop"),
        (rb"(?<!de)(?<!un)init", rb"deinit|cleanup|destroy|fini"),
    )
)


@dataclass(frozen=True, slots=True)
class Half:
    """A line that does one half of something: `kind` and `first` say what, `names` to what, `text` is for people."""

    kind: int
    first: bool
    names: frozenset[bytes]
    text: str


@dataclass(frozen=True)
class _Parts:
    """What a hunk has of pairs, read when it is asked for."""

    hunk: Hunk

    @cached_property
    def halves(self) -> list[Half]:
        return list(_halves(self.hunk))

    @cached_property
    def declared(self) -> set[bytes]:
        return declared(self.hunk.added)

    @cached_property
    def used(self) -> set[bytes]:
        return used(self.hunk.added)


def flag(alignment: Alignment, hunks: Sequence[Hunk], results: Sequence[HunkResult]) -> list[HunkResult]:
    """Say it of a placed hunk when its other half was not placed.

    If the other half needs a human, that one is told. If it is upstream, which may do both in its own way, the hunk is
    left to a human.
    """
    final = list(results)
    parts = list(map(_Parts, hunks))
    placed = [n for n, result in enumerate(results) if result.edits]
    for other, result in enumerate(results):
        if result.edits:
            continue
        for number in placed:
            why = _link(alignment, parts[number], parts[other])
            if not why:
                continue
            upstream = result.verdict is Verdict.UPSTREAM
            where = "is upstream" if upstream else "needs a human"
            evidence = f"it belongs to hunk {other + 1}, which {where}: {why}"
            found = "; ".join(part for part in (evidence, final[number].evidence) if part)
            final[number] = human(found) if upstream else replace(final[number], evidence=found)
    return final


def _link(alignment: Alignment, placed: _Parts, other: _Parts) -> str:
    """Return what two hunks share, of which only `placed` is in the new file; empty if nothing."""
    for mine in placed.halves:
        for its in other.halves:
            if mine.kind == its.kind and mine.first != its.first and mine.names & its.names:
                return f"{mine.text} goes with {its.text}"
    fresh = other.declared & placed.used - placed.declared
    missing = sorted(n for n in fresh if n not in alignment.base_names and n not in alignment.ours_names)
    return f"it alone declares {missing[0].decode()!r}" if missing else ""


def _halves(hunk: Hunk) -> Iterator[Half]:
    removed = set(hunk.removed)
    for line in hunk.added:
        text = code([line])
        if line in removed or _DEFINITION.match(text):
            continue
        for call in _CALL.finditer(text):
            for kind, words in enumerate(_KINDS):
                for first, word in zip((True, False), words, strict=True):
                    if word.search(call[1]):
                        names = used([line]) - {match[1] for match in _CALL.finditer(text)}
                        yield Half(kind, first, frozenset(names), f"`{text.strip()[:60].decode('utf-8', 'replace')}`")
