"""What lines and tokens are compared by, and how much a line says about its place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_TOKEN = re.compile(rb"\w+|[^\w\s]")
_WORD = re.compile(rb"[A-Za-z_]\w+")
_STATEMENT = re.compile(rb";\s*(?://.*)?$")
_NO_HEADING = (b"#", b"//", b"/*", b"* ")
#: Lines that are in a thousand places and so say nothing about their own.
_COMMON = frozenset(
    {b"return", b"break", b"else", b"continue", b"endif", b"pass", b"try", b"public", b"private", b"override"}
)


def norm(line: bytes) -> bytes:
    """Return a line without indentation, line end and doubled blanks."""
    return b" ".join(line.split())


def tokens(lines: Iterable[bytes]) -> list[bytes]:
    """Return the tokens of code, whatever its line breaks and blanks."""
    return _TOKEN.findall(b"\n".join(lines))


def distinctive(line: bytes) -> bool:
    """Tell whether a line has enough words to say where it belongs."""
    words = [word for word in _WORD.findall(line) if word not in _COMMON]
    return len(words) >= 2 or any(len(word) >= 8 for word in words)


def weight(lines: Iterable[bytes]) -> int:
    return sum(map(distinctive, lines))


def indent(line: bytes) -> bytes:
    return line[: len(line) - len(line.lstrip(b" \t"))]


def occurrences(haystack: Sequence[bytes], needle: Sequence[bytes]) -> list[int]:
    """Return every index at which `needle` begins in `haystack`; none for an empty needle."""
    if not needle:
        return []
    size, first = len(needle), needle[0]
    wanted = list(needle)
    return [
        at
        for at, item in enumerate(haystack)
        if item == first and at + size <= len(haystack) and list(haystack[at : at + size]) == wanted
    ]


def headings(lines: Sequence[bytes], at: int) -> list[int]:
    """Return what encloses the place before line `at`, innermost first: lines with ever smaller indentation.

    Preprocessor lines, comments, statements, labels of access and lone brackets enclose nothing. The last is usually
    the first line of a function or class; there is none at the top level of a file.
    """
    depth = _depth_at(lines, at)
    chain: list[int] = []
    for index in range(at - 1, -1, -1):
        if depth == 0:
            break
        line = lines[index]
        text = line.strip()
        size = len(indent(line.expandtabs(8)))
        if not text or size >= depth or text.startswith(_NO_HEADING) or _STATEMENT.search(text):
            continue
        if _WORD.search(text) is None or text in {b"public:", b"private:", b"protected:"}:
            if size == 0 and text.startswith(b"}"):
                break
            continue
        chain.append(index)
        depth = size
    return chain


def _depth_at(lines: Sequence[bytes], at: int) -> int:
    """Return the indentation of the place before line `at`, from the nearest lines that have one."""
    after = next((line for line in lines[at:] if line.strip() and not line.startswith(b"#")), b"")
    before = next((line for line in reversed(lines[:at]) if line.strip() and not line.startswith(b"#")), b"")
    sizes = [len(indent(line.expandtabs(8))) for line in (before, after)]
    if after.strip().startswith((b"}", b")")) or before.strip().endswith((b"{", b":")):
        return max(sizes[0], sizes[1], 1 if before.strip().endswith((b"{", b":")) else 0)
    return max(sizes) if before.strip() != b"}" else sizes[1]


def similarity(a: Sequence[bytes], b: Sequence[bytes]) -> float:
    """Return how much two short pieces of code share, 0 to 1, by their tokens."""
    left, right = tokens(a), tokens(b)
    if not left or not right:
        return float(left == right)
    pool: dict[bytes, int] = {}
    for token in right:
        pool[token] = pool.get(token, 0) + 1
    shared = 0
    for token in left:
        if pool.get(token, 0):
            pool[token] -= 1
            shared += 1
    return 2 * shared / (len(left) + len(right))
