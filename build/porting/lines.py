"""Compare lines and tokens, and tell how distinctive a line is for its place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

_TOKEN = re.compile(rb"\w+|[^\w\s]")
_WORD = re.compile(rb"[A-Za-z_]\w+")
_PART = re.compile(rb"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_STATEMENT = re.compile(rb";\s*(?://.*)?$")
_NO_HEADING = (b"#", b"//", b"/*", b"* ")
#: Words that are in too many places to be distinctive.
_COMMON = frozenset(b"return break else continue endif pass try public private override".split())

#: Lines that only make names known; the code that needs the names is further down.
_IMPORT = re.compile(rb"\s*(#\s*include\b|import\b|from\s+\S+\s+import\b|using\s|find_package\s*\()")


def norm(line: bytes) -> bytes:
    """Return a line without indentation, line end and doubled blanks."""
    return b" ".join(line.split())


def tokens(lines: Iterable[bytes]) -> list[bytes]:
    """Return the tokens of code, independent of line breaks and blanks."""
    return _TOKEN.findall(b"\n".join(lines))


def words(lines: Iterable[bytes]) -> list[bytes]:
    """Return the words of code in lower case; names are split at underscores and capitals."""
    return b" ".join(_PART.findall(b"\n".join(lines))).lower().split()


def distinctive(line: bytes) -> bool:
    """Return whether a line has enough words to identify its place."""
    words = [word for word in _WORD.findall(line) if word not in _COMMON]
    return len(words) >= 2 or any(len(word) >= 8 for word in words)


def weight(lines: Iterable[bytes]) -> int:
    return sum(map(distinctive, lines))


def indent(line: bytes) -> bytes:
    return line[: len(line) - len(line.lstrip(b" \t"))]


@lru_cache(maxsize=256)
def _width(blanks: bytes) -> int:
    return len(blanks.expandtabs(8))


def headings(lines: Sequence[bytes], at: int) -> list[int]:
    """Return the lines that enclose the place before line `at`, innermost first, by smaller and smaller indentation.

    Preprocessor lines, comments, statements, access labels and lone brackets are passed over. The last line is usually
    the first line of a function or class. At the top level of a file the list is empty.
    """
    depth = _depth_at(lines, at)
    chain: list[int] = []
    for index in range(at - 1, -1, -1):
        if depth == 0:
            break
        line = lines[index]
        text = line.strip()
        size = _width(indent(line))
        if not text or size >= depth or text.startswith(_NO_HEADING) or _STATEMENT.search(text):
            continue
        if _WORD.search(text) is None or text in {b"public:", b"private:", b"protected:"}:
            if size == 0 and text.startswith(b"}"):
                break
            continue
        chain.append(index)
        depth = size
    return chain


def end_of(lines: Sequence[bytes], start: int) -> int:
    """Return the line below the function or class whose first line is `start`, by indentation."""
    depth = len(lines[start]) - len(lines[start].lstrip())
    for at in range(start + 1, len(lines)):
        line = lines[at]
        if line.strip() and len(line) - len(line.lstrip()) <= depth and line.lstrip()[:1].isalpha():
            return at
    return len(lines)


def _depth_at(lines: Sequence[bytes], at: int) -> int:
    """Return the indentation of the place before line `at`, from the nearest lines that have one."""
    after = next((line for line in lines[at:] if line.strip() and not line.startswith(b"#")), b"")
    before = next((line for line in reversed(lines[:at]) if line.strip() and not line.startswith(b"#")), b"")
    sizes = [_width(indent(line)) for line in (before, after)]
    if after.strip().startswith((b"}", b")")) or before.strip().endswith((b"{", b":")):
        return max(sizes[0], sizes[1], 1 if before.strip().endswith((b"{", b":")) else 0)
    return max(sizes) if before.strip() != b"}" else sizes[1]


def similarity(a: Sequence[bytes], b: Sequence[bytes]) -> float:
    """Return how much two short pieces of code share, 0 to 1, by their tokens."""
    left, right = tokens(a), tokens(b)
    if not left or not right:
        return float(left == right)
    return 2 * (Counter(left) & Counter(right)).total() / (len(left) + len(right))


def imports_only(lines: Iterable[bytes]) -> bool:
    return all(_IMPORT.match(line) or not line.strip() for line in lines)


def has_word(data: bytes, name: bytes) -> bool:
    return name in data and re.search(rb"\b%s\b" % re.escape(name), data) is not None
