"""Declarations of a header, by its text, and what code that includes it has compiled in of them.

Debug information has no bodies, values, macros, or templates that nobody uses. Their tokens are compared instead.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from build.overlay.touched import bare

_TOKEN = re.compile(
    r'R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|[A-Za-z_]\w*|\.?\d(?:[\w.]|\'\w|[eEpP][+-])*|'
    r"^[ \t]*#(?:[^\n\\]|\\.)*|::|->|==|!=|<=|&&|\|\||<<|\S",
    re.S | re.M,
)
_DIRECTIVE = re.compile(r"\s*#\s*(\w+)(.*)", re.S)
_SCOPES = frozenset({"namespace", "class", "struct", "union"})
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
#: They stand before a parenthesis, and are no functions.
_NO_FUNCTION = frozenset({"alignas", "decltype", "__attribute__", "sizeof", "operator", "noexcept"})
#: Blanks that nobody writes.
_BLANK = re.compile(r" ?(::|->|[(\[~.])[ ]?|[ ]([)\],;])")
#: Letters of a declaration that are shown.
_SHOWN = 120
#: In what has a place in a table of virtual functions, or may decide whether an object is passed in registers.
_SPECIAL = frozenset({"virtual", "override", "final", "~", "operator"})
_NAMED = frozenset({"enum", "using", "typedef", "friend", "static_assert", "#"})


@dataclass(frozen=True, slots=True)
class Declaration:
    """One declaration, one `#define`, or one `#pragma`.

    Attributes:
        scope: heads of the namespaces and classes that it is in, and conditions of the preprocessor.
        tokens: its tokens, with those of its body.
        inexact: it is in a template, or in a condition inside a class: debug information may not have it.
        derived: it is in a class with a base, so that a function may be virtual without saying so.
    """

    scope: tuple[str, ...]
    tokens: tuple[str, ...]
    inexact: bool
    derived: bool = field(compare=False)

    @property
    def compiled_in(self) -> bool:
        """Return whether it has a body or a value, which includers compile in; enumerators are in debug information."""
        templates = self.inexact or self.tokens[0] in {"template", "#"}
        return templates or (self.tokens[0] != "enum" and not {"{", "="}.isdisjoint(self.tokens))

    @property
    def function(self) -> bool:
        """Return whether it is surely a function that decides no layout, and not how objects are passed and copied."""
        if self.derived or self.specialization or self.tokens[0] in _NAMED or not _SPECIAL.isdisjoint(self.tokens):
            return False
        return bool(self.signature) and self.signature[-1] != (self.scope or ("",))[-1].split(" ")[-1]

    @property
    def signature(self) -> tuple[str, ...]:
        """The tokens of a function up to its name; empty for what is none, or is not understood."""
        depth = 0
        for number, (before, piece) in enumerate(pairwise(self.tokens), 1):
            depth += (piece == "<") - (piece == ">")
            if piece == "(" and depth <= 0:
                named = before.isidentifier() and before not in _NO_FUNCTION
                return tuple(word for word in self.tokens[:number] if not word.endswith("_API")) if named else ()
            if piece in {"{", "="} and depth <= 0:
                return ()
        return ()

    @property
    def specialization(self) -> bool:
        return self.tokens[:3] == ("template", "<", ">")

    def __str__(self) -> str:
        heads = (_BLANK.sub(r"\1\2", name).split(" ") for name in self.scope if name[0] != "#")
        text = _BLANK.sub(r"\1\2", " ".join(self.tokens))
        place = "::".join(next((word for word in head[::-1] if word != "final"), "") for head in heads)
        return f"{place}{': ' if place else ''}{text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}"


@dataclass(slots=True)
class _Reader:
    """The scopes that are open, innermost last, and the declaration that is read."""

    scopes: list[tuple[str, bool, bool]] = field(default_factory=list)
    conditions: list[tuple[str, bool]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    depth: int = 0

    def declared(self) -> Iterator[Declaration]:
        """Yield the declaration that has been read, unless it is empty."""
        tokens, self.tokens, self.depth = tuple(self.tokens), [], 0
        if set(tokens) - {";"}:
            names = (*(name for name, *_ in self.scopes), *(name for name, _ in self.conditions))
            inexact = any(template for _, template, _ in self.scopes) or any(inside for _, inside in self.conditions)
            yield Declaration(names, tokens, inexact, bool(self.scopes) and self.scopes[-1][2])

    def directive(self, text: str) -> Iterator[Declaration]:
        """Read a directive; inside of a declaration it is a part of that."""
        found = _DIRECTIVE.match(text)
        word, rest = (found[1], found[2].split()) if found else ("", [])
        if self.tokens:
            self.tokens.append(text.strip())
        elif word in {"define", "undef"}:
            self.tokens = ["#", word, *rest]
            yield from self.declared()
        elif word == "pragma":  # one word: it is no function, and may change layouts
            self.tokens = [" ".join(["#pragma", *rest])]
            yield from self.declared()
        elif word not in {"include", "error", "warning"}:
            self._condition(word, " ".join(rest))

    def _condition(self, word: str, rest: str) -> None:
        if word.startswith("if"):
            inside = any(name.split(" ")[0] != "namespace" for name, *_ in self.scopes)
            self.conditions.append((f"#{word} {rest}", inside))
        elif self.conditions:
            name, inside = self.conditions.pop()
            if word.startswith("el"):
                self.conditions.append((f"{name} #{word} {rest}", inside))

    def opens_scope(self) -> bool:
        """Return whether the `{` that comes opens a namespace or a class, and not a body or a value."""
        return (
            not self.depth
            and not _SCOPES.isdisjoint(self.tokens)
            and self.tokens[0] != "enum"
            and "=" not in self.tokens
            and "(" not in _without_attributes(self.tokens)
        ) or self.tokens == ["extern", '"C"']

    def open(self) -> Iterator[Declaration]:
        """Go into a scope; yield the head of a class as a declaration of its own."""
        head = tuple(self.tokens)
        if head[0] in {"namespace", "inline", "extern"}:
            self.tokens = []
        yield from self.declared()
        name, base, _ = " ".join(head).partition(" : ")
        self.scopes.append((name, "template" in head, bool(base)))


def _without_attributes(head: list[str]) -> list[str]:
    """Return the head of a class without the parentheses of attributes and of template arguments."""
    kept: list[str] = []
    depth = angle = 0
    for before, piece in zip(["", *head], head, strict=False):
        angle += (piece == "<") - (piece == ">")
        opens = piece == "(" and (depth or angle or before in {"alignas", "__attribute__", "decltype"})
        depth += bool(opens) - (piece == ")" and bool(depth))
        kept += [] if depth else [piece]
    return kept


def read(source: str) -> list[Declaration]:
    """Return the declarations of a header in order; what is not understood is a part of the one that it is in."""
    reader, found = _Reader(), list[Declaration]()
    tokens = [match[0] for match in _TOKEN.finditer(bare(source))]
    for piece, following in zip(tokens, [*tokens[1:], ""], strict=True):
        found += _read(reader, piece, following)
    return [*found, *reader.declared()]


def _read(reader: _Reader, piece: str, following: str) -> Iterator[Declaration]:
    if piece.lstrip().startswith("#"):
        yield from reader.directive(piece)
    elif piece == "{" and reader.opens_scope():
        yield from reader.open()
    elif piece == "}" and not reader.depth and reader.scopes:
        yield from reader.declared()
        reader.scopes.pop()
    elif piece == ":" and reader.tokens in (["public"], ["protected"], ["private"]):
        reader.tokens = []
    else:
        reader.tokens.append(piece)
        reader.depth += (piece in _OPENING) - (piece in _CLOSING)
        ended = piece == "}" and following not in {";", ",", "{", ")", "(", "=", "catch"}
        if not reader.depth and (piece == ";" or ended):
            yield from reader.declared()


def lost(old: str, new: str) -> list[Declaration]:
    """Return what code that included the old header has compiled in, and what the new one has otherwise.

    What a template or a condition inside a class has beside functions counts with its order: it may be a layout.
    A function that returns something else has the same symbol; one with other arguments has another.
    """
    before, after = read(old), read(new)
    every = Counter(item for item in before if item.compiled_in)
    gone = list((every - Counter(after)).elements())
    scopes = {item.scope for item in before}
    fields, now = ([item for item in part if item.inexact and not item.function] for part in (before, after))
    new_fields = [item for item in now if item.scope in scopes and item not in fields]
    moved = fields if not gone and [item for item in now if item in fields] != fields else []
    special = [item for item in after if item.specialization and item not in before]
    return list(dict.fromkeys([*gone, *_returning_other(before, after), *new_fields, *moved, *special]))


def _returning_other(before: list[Declaration], after: list[Declaration]) -> list[Declaration]:
    """Return the functions of which the new header only has such that return something else, or are static."""
    new = [item for item in after if item.signature and item not in before]
    changed = [item for item in before if item.signature and item not in after]
    named = {item: [other for other in new if _name(other) == _name(item)] for item in changed}
    return [item for item, others in named.items() if others and all(o.signature != item.signature for o in others)]


def _name(item: Declaration) -> tuple[tuple[str, ...], str]:
    return item.scope, item.signature[-1]


def layouts_kept(old: str, new: str) -> bool:
    """Return whether the text shows that no layout differs: the new header only has more functions, none virtual."""
    before, after = read(old), read(new)
    added = Counter(after) - Counter(before)
    stays = [item for item in after if item not in added]
    return stays == before and all(item.function for item in added)


def differing(old: str, new: str) -> list[str] | None:
    """Return what extensions have compiled in of a header and it has otherwise; None if only its types can tell."""
    if gone := lost(old, new):
        return [f"other than stock's: {item}" for item in gone]
    return [] if layouts_kept(old, new) else None
