"""Find blocks of lines in a file, byte for byte."""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property


class Text:
    """The bytes of a file as lines; a line keeps its end."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    @cached_property
    def lines(self) -> list[bytes]:
        """The lines, split at `\\n` only: a lone `\\r` is content."""
        parts = self.data.split(b"\n")
        return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])

    @cached_property
    def starts(self) -> list[int]:
        """Byte offset of every line."""
        offsets, at = [], 0
        for line in self.lines:
            offsets.append(at)
            at += len(line)
        return offsets

    def find(self, block: list[bytes]) -> list[int]:
        """Return every index (from 0) where the lines of `block` stand; none for an empty block."""
        needle = b"".join(block)
        found: list[int] = []
        at = self.data.find(needle) if needle else -1
        while at >= 0:
            end = at + len(needle)
            if (at == 0 or self.data[at - 1 : at] == b"\n") and (needle.endswith(b"\n") or end == len(self.data)):
                found.append(bisect_left(self.starts, at))
            at = self.data.find(needle, at + 1)
        return found
