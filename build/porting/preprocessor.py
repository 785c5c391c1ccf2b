"""Make C and C++ readable for a grammar that knows no preprocessor: lines and columns stay where they are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

#: What brackets and `#` do not count in: comments, strings, characters; and numbers, which may have an apostrophe.
_SCAN = re.compile(
    rb"""(?P<directive>^[ \t]*\#[ \t]*(?P<word>\w*)(?:[^\n\\/]|\\\r?\n|\\.|/(?!\*)|/\*.*?\*/)*)
    |(?P<comment>//(?:[^\n\\]|\\\r?\n|\\.)*|/\*.*?(?:\*/|\Z))
    |(?P<text>\b(?:u8|[uUL])?R"(?P<end>[^()\\\s]{0,16})\(.*?(?:\)(?P=end)"|\Z)|"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?)
    |\b\d(?:'?[\w.])*""",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)
#: Every byte as a blank, but for the line end.
_BLANKS = b" " * 10 + b"\n" + b" " * 245
#: `class TORCH_API Name`, and a macro before a declaration: a grammar takes such a word for the name or the type.
_ATTRIBUTE = re.compile(rb"(\b(?:class|struct|enum|union)\s+)([A-Z][A-Z0-9_]{2,}(?:\([^()\n]*\))?)(?=\s+[A-Za-z_])")
_BEFORE = re.compile(
    rb"^([ \t]*(?:(?:static|inline|extern|virtual)[ \t]+)*)([A-Z][A-Z0-9]*_[A-Z0-9_]+)(?=[ \t]+[\w:<>*&]+[ \t*&:(])",
    re.MULTILINE,
)
#: The launch of a CUDA kernel.
_LAUNCH = re.compile(rb"<<<[^;{}]*?>>>")


@dataclass(frozen=True)
class Variant:
    """A file with one branch of each `#if` kept, without directives.

    Attributes:
        plain: its lines.
        texts: where its strings, characters and comments are.
        code: `plain` for a grammar, without what looks like macros; `bare` without texts. Made when asked for.
    """

    plain: bytes
    texts: tuple[tuple[int, int], ...]

    @cached_property
    def code(self) -> bytes:
        return _without_macros(self.plain)

    @cached_property
    def bare(self) -> bytes:
        bare = bytearray(self.plain)
        for start, end in self.texts:
            bare[start:end] = _blank(self.plain[start:end])
        return bytes(bare)


@lru_cache(maxsize=8)
def variants(data: bytes) -> tuple[Variant, ...]:
    """Return the file with the first branch of every `#if`, and with the last, if it differs.

    A statement that begins in one branch and goes on behind the `#endif` makes sense only with one of them.
    """
    texts: list[tuple[int, int]] = []
    directives: list[tuple[int, int, bytes]] = []
    for match in _SCAN.finditer(data):
        kind = match.lastgroup
        if kind == "directive":
            directives.append((*match.span(), match["word"]))
        elif kind is not None:
            texts.append(match.span())
    groups = _groups(directives)
    branches = (0, -2) if any(len(group) > 2 for group in groups) else (0,)
    plain = dict.fromkeys(_plain(data, directives, groups, which) for which in branches)
    return tuple(Variant(lines, tuple(texts)) for lines in plain)


def _groups(directives: list[tuple[int, int, bytes]]) -> list[list[tuple[int, int]]]:
    """Return the directives of each `#if`, from that to its `#endif`."""
    groups: list[list[tuple[int, int]]] = []
    waiting: list[list[tuple[int, int]]] = []
    for start, end, word in directives:
        if word.startswith(b"if"):
            waiting.append([(start, end)])
        elif waiting and word.startswith(b"el"):
            waiting[-1].append((start, end))
        elif waiting and word == b"endif":
            groups.append([*waiting.pop(), (start, end)])
    return groups


def _plain(
    data: bytes, directives: list[tuple[int, int, bytes]], groups: list[list[tuple[int, int]]], which: int
) -> bytes:
    code = bytearray(data)
    for start, end, _ in directives:
        code[start:end] = _blank(data[start:end])
    for group in groups:
        kept = group[which]
        for this, following in pairwise(group):
            if this != kept:
                code[this[1] : following[0]] = _blank(data[this[1] : following[0]])
    return bytes(code)


def _without_macros(code: bytes) -> bytes:
    for pattern in (_ATTRIBUTE, _BEFORE):
        code = pattern.sub(lambda match: match[1] + b" " * len(match[2]), code)
    return _LAUNCH.sub(lambda match: _blank(match[0]), code)


def _blank(data: bytes) -> bytes:
    return data.translate(_BLANKS)
