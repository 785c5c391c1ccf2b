"""Make C and C++ readable for a grammar that knows no preprocessor: lines and columns stay where they are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

#: What brackets and `#` do not count in: comments, strings, characters; and numbers, which may have an apostrophe. All
#: begin with one of few bytes, the first thing that the expression asks for, so that most of a file is passed over
#: quickly. It is the line end for a directive, so a file is given with one more in front.
_SCAN = re.compile(
    rb"""[\n/"'0-9RuUL](?:
    (?<=\n)(?P<directive>[ \t]*\#[ \t]*(?P<word>\w*)(?:[^\n\\/]+|\\\r?\n|\\.|/(?!\*)|/\*[^*]*(?:\*(?!/)[^*]*)*\*/)*)
    |(?<=/)(?P<comment>/(?:[^\n\\]+|\\\r?\n|\\.)*|\*[^*]*(?:\*(?!/)[^*]*)*(?:\*/)?)
    |(?P<text>(?<=")(?:[^"\\\n]+|\\.)*"?|(?<=')(?:[^'\\\n]+|\\.)*'?
        |(?<=[RuUL])(?<!\w.)(?:(?<=R)|(?<!R)(?:(?<=u)8)?R)"(?P<end>[^()\\\s]{0,16})\(.*?(?:\)(?P=end)"|\Z))
    |(?<=[0-9])(?<!\w.)(?:'?[\w.]+)*)""",
    re.DOTALL | re.VERBOSE,
)
#: Every byte as a blank, but for the line end.
_BLANKS = b" " * 10 + b"\n" + b" " * 245
#: `class TORCH_API Name`, and a macro before a declaration: a grammar takes such a word for the name or the type. Each
#: word has an expression of its own: one that begins with it is searched much more quickly than one of several.
_ATTRIBUTES = {
    word: re.compile(
        rb"(%s(?<!\w.{%d})\s+)([A-Z][A-Z0-9_]{2,}(?:\([^()\n]*\))?)(?=\s+[A-Za-z_])" % (word, len(word)), re.DOTALL
    )
    for word in (b"class", b"struct", b"enum", b"union")
}
_BEFORE = re.compile(
    rb"(\n[ \t]*(?:(?:static|inline|extern|virtual)[ \t]+)*)([A-Z][A-Z0-9]*_[A-Z0-9_]+)(?=[ \t]+[\w:<>*&]+[ \t*&:(])"
)
#: The launch of a CUDA kernel.
_LAUNCH = re.compile(rb"<<<[^;{}]*?>>>")


@dataclass(frozen=True)
class Variant:
    """A file with one branch of each `#if` kept, without directives.

    Attributes:
        plain: its lines.
        texts: where its strings, characters and comments are.
        code: `plain` for a grammar, without what looks like macros, made when asked for.
    """

    plain: bytes
    texts: tuple[tuple[int, int], ...]

    @cached_property
    def code(self) -> bytes:
        return _without_macros(self.plain)

    def count(self, letter: bytes) -> int:
        """Return how often a letter stands outside the texts."""
        return self.plain.count(letter) - self._inside.count(letter)

    @cached_property
    def _inside(self) -> bytes:
        return b"".join([self.plain[start:end] for start, end in self.texts])


@lru_cache(maxsize=8)
def variants(data: bytes) -> tuple[Variant, ...]:
    """Return the file with the first branch of every `#if`, and with the last, if it differs.

    A statement that begins in one branch and goes on behind the `#endif` makes sense only with one of them.
    """
    texts: list[tuple[int, int]] = []
    directives: list[tuple[int, int, bytes]] = []
    for match in _SCAN.finditer(b"\n" + data):
        kind = match.lastgroup
        if kind == "directive":
            directives.append((match.start(), match.end() - 1, match["word"]))
        elif kind:
            texts.append((match.start() - 1, match.end() - 1))
    groups = _groups(directives)
    branches = (0, -2) if any(len(group) > 2 for group in groups) else (0,)
    code = _without_directives(data, directives)
    plain = dict.fromkeys(_plain(code, groups, which) for which in branches)
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


def _without_directives(data: bytes, directives: list[tuple[int, int, bytes]]) -> bytes:
    parts, done = [], 0
    for start, end, _ in directives:
        parts += [data[done:start], _blank(data[start:end])]
        done = end
    return b"".join((*parts, data[done:]))


def _plain(code: bytes, groups: list[list[tuple[int, int]]], which: int) -> bytes:
    """Return the lines of one branch of each `#if`."""
    kept = bytearray(code)
    for group in groups:
        for this, following in pairwise(group):
            if this != group[which]:
                kept[this[1] : following[0]] = _blank(code[this[1] : following[0]])
    return bytes(kept)


def _without_macros(code: bytes) -> bytes:
    code = b"\n" + code
    for pattern in (*(found for word, found in _ATTRIBUTES.items() if word in code), _BEFORE):
        code = pattern.sub(lambda match: match[1] + b" " * len(match[2]), code)
    return _LAUNCH.sub(lambda match: _blank(match[0]), code[1:])


def _blank(data: bytes) -> bytes:
    return data.translate(_BLANKS)
