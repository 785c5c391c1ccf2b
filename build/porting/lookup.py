"""Ask whether a file has a name or a word: only the lines with its letters are read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class Lookup:
    """The names, or the words, of a file.

    Attributes:
        lines: the file.
        of: returns those of some lines; what it finds is as it is in the line, or in lower case.
        inside: pairs of bytes between which none of them begins or ends: these need not be read.
        folded: it is in lower case.
    """

    lines: Sequence[bytes]
    of: Callable[[Sequence[bytes]], Collection[bytes]]
    inside: frozenset[bytes] = frozenset()
    folded: bool = False
    _answers: dict[bytes, bool] = field(default_factory=dict)
    _heads: dict[bytes, bool] = field(default_factory=dict)
    _read: dict[int, frozenset[bytes]] = field(default_factory=dict)

    def __contains__(self, item: bytes) -> bool:
        if item not in self._answers:
            self._answers[item] = self._any(item, lambda found: item in found, whole=True)
        return self._answers[item]

    def begins(self, head: bytes) -> bool:
        """Whether one of them begins with `head`."""
        if head not in self._heads:
            self._heads[head] = self._any(head, lambda found: any(item.startswith(head) for item in found))
        return self._heads[head]

    def _any(self, letters: bytes, holds: Callable[[Collection[bytes]], bool], *, whole: bool = False) -> bool:
        text, size = self._searched, len(letters)
        at = text.find(letters)
        while at >= 0:
            last = at + size
            if self._text[at - 1 : at + 1] in self.inside or (whole and self._text[last - 1 : last + 1] in self.inside):
                at = text.find(letters, at + 1)
                continue
            start = text.rfind(b"\n", 0, at) + 1
            end = text.find(b"\n", at)
            end = len(text) if end < 0 else end
            if holds(self._line(start, end)):
                return True
            at = text.find(letters, end)
        return False

    def _line(self, start: int, end: int) -> frozenset[bytes]:
        """Return what a line has; each is read once, since it may be all of a file."""
        if start not in self._read:
            self._read[start] = frozenset(self.of([self._text[start:end]]))
        return self._read[start]

    @cached_property
    def _text(self) -> bytes:
        return b"".join(self.lines)

    @cached_property
    def _searched(self) -> bytes:
        return self._text.lower() if self.folded else self._text
