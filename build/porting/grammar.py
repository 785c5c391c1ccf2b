"""Read files with the grammars of tree-sitter, and Python with Python's own compiler."""

from __future__ import annotations

import posixpath
import re
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from build.porting.preprocessor import variants
from build.porting.reparse import Like, edited

# Imported where a file is read: no other command waits for it.
if TYPE_CHECKING:
    import tree_sitter

#: Largest file in bytes that is read: its tree takes some 60 times as much memory.
LARGEST = 4 << 20
#: Seconds of processor time after which reading a file is given up. Code takes 0.1 s for a megabyte, noise minutes.
LONGEST = 2.0
#: Bytes of code that the parser asks for at once. So many are copied each time that the text of a node is asked for.
PIECE = 512
#: Largest file in bytes whose tree is kept for the next question, and number of trees that are.
_KEPT, _MOST_TREES = 1 << 19, 4
#: Errors after which a file counts as one that the grammar cannot read, and the others are not collected.
_MANY = 500


class Language(Enum):
    """A language with a grammar."""

    C = "C"
    CPP = "C++"
    PYTHON = "Python"
    CMAKE = "CMake"

    @property
    def braces(self) -> bool:
        """Whether blocks are in braces, and a preprocessor comes first."""
        return self in {Language.C, Language.CPP}


_ENDS = {
    Language.C: (".c", ".h"),
    Language.CPP: (".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hpp", ".hh", ".hxx", ".inl", ".ipp"),
    Language.PYTHON: (".py", ".pyi"),
    Language.CMAKE: (".cmake",),
}
_ENDINGS = frozenset(
    {b"else", b"elseif", b"endblock", b"endforeach", b"endfunction", b"endif", b"endmacro", b"endwhile"}
)
#: Nodes that hold the items of a file, not items themselves.
HOLDERS = frozenset({
    "ERROR", "block", "class_definition", "class_specifier", "declaration_list", "field_declaration_list",
    "linkage_specification", "namespace_definition", "struct_specifier", "template_declaration",
})  # fmt: skip


_TREES: dict[tuple[Language, bytes], tree_sitter.Tree] = {}


class UnreadableError(Exception):
    """A file cannot be read at all; the text says why."""


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Lines `start..end` (from 0, end excluded)."""

    start: int
    end: int

    def meets(self, other: Span) -> bool:
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True, slots=True)
class Reading:
    """What a grammar makes of a file.

    Attributes:
        errors: the parts that it cannot read.
        items: the functions, declarations and statements at the top, and those of namespaces and classes; none where
            all can be read, since they are only needed around errors.
    """

    errors: tuple[Span, ...]
    items: tuple[Span, ...]

    def around(self, span: Span) -> Span:
        """Return the items that `span` is in, as one; `span` itself between two items."""
        met = [item for item in self.items if item.meets(span)]
        return Span(min(item.start for item in (span, *met)), max(item.end for item in (span, *met)))

    def broken(self, span: Span) -> list[Span]:
        return [error for error in self.errors if error.meets(span)]


def languages_of(path: str) -> tuple[Language, ...]:
    """Return the languages that a file may be written in, by its name; none if there is no grammar for it."""
    name = posixpath.basename(path)
    if name == "CMakeLists.txt":
        return (Language.CMAKE,)
    name = name.removesuffix(".in")
    return tuple(language for language, ends in _ENDS.items() if name.endswith(ends))


def language_of(path: str, data: bytes) -> Language | None:
    """Return the language of a file; a C or C++ header's is the one whose grammar reads more of it."""
    found = languages_of(path)
    if len(found) < 2:
        return found[0] if found else None
    errors: dict[Language, int] = {}
    for language in found:
        errors[language] = len(read(language, form(language, data, 0)).errors)
        if not errors[language]:
            break
    return min(errors, key=errors.__getitem__)


@lru_cache(maxsize=32)
def read(language: Language, code: bytes) -> Reading:
    """Read a form of a file.

    Raises:
        UnreadableError: it takes too long.
    """
    root = parse(language, code).root_node
    stray = _stray(root) if language is Language.CMAKE else []
    errors = tuple(sorted([*_errors(root), *stray]))
    return Reading(errors, tuple(_items(root)) if errors else ())


def require_readable(*files: bytes) -> None:
    """Raise UnreadableError for a file that is binary or too large."""
    for data in files:
        if b"\0" in data:
            raise UnreadableError("it is binary")
        if len(data) > LARGEST:
            raise UnreadableError(f"it has more than {LARGEST >> 20} MiB")


def forms(language: Language, data: bytes) -> int:
    """Return the number of forms of a file that its grammar is given.

    Raises:
        UnreadableError: the file is binary or too large.
    """
    require_readable(data)
    return len(variants(data)) if language.braces else 1


def form(language: Language, data: bytes, number: int) -> bytes:
    """Return a form of a file; where it has fewer, its last stands for the others.

    Raises:
        UnreadableError: the file is binary or too large.
    """
    last = min(number, forms(language, data) - 1)
    return variants(data)[last].code if language.braces else data


@cache
def grammar(language: Language) -> tree_sitter.Language:
    import tree_sitter
    import tree_sitter_c
    import tree_sitter_cpp
    import tree_sitter_python
    from tree_sitter_language_pack import get_binding

    if language is Language.CMAKE:
        return tree_sitter.Language(get_binding("cmake"))
    made = {Language.C: tree_sitter_c, Language.CPP: tree_sitter_cpp, Language.PYTHON: tree_sitter_python}
    return tree_sitter.Language(made[language].language())


def parse(language: Language, code: bytes, like: Like | None = None) -> tree_sitter.Tree:
    """Return the syntax tree of a form of a file; the last trees of files that are not large are kept.

    Where the tree of `like` is kept, only what differs from it is read.

    Raises:
        UnreadableError: it takes too long.
    """
    if len(code) > _KEPT:
        return _parsed(language, code)
    tree = _TREES.pop((language, code), None) or _parsed(language, code, _known(language, code, like))
    _TREES[language, code] = tree
    while len(_TREES) > _MOST_TREES:
        del _TREES[next(iter(_TREES))]
    return tree


def parse_like(language: Language, code: bytes, like: Like) -> None:
    """Parse a text by the tree of one that it resembles, if that is kept: whoever asks next finds its tree."""
    if (language, like.code) in _TREES and len(code) <= _KEPT:
        parse(language, code, like)


def _known(language: Language, code: bytes, like: Like | None) -> tree_sitter.Tree | None:
    """Return the tree of a text that `code` resembles: of `like`, or of another form of the file, as long as it."""
    if like and (tree := _TREES.get((language, like.code))):
        return edited(tree, like, code)
    for (of, other), tree in reversed(_TREES.items()):
        if of is language and len(other) == len(code):
            return edited(tree, Like(other), code)
    return None


def _parsed(language: Language, code: bytes, known: tree_sitter.Tree | None = None) -> tree_sitter.Tree:
    import tree_sitter

    end = time.thread_time() + LONGEST
    parser = tree_sitter.Parser(grammar(language))

    def piece(at: int, _: object) -> bytes:
        return code[at : at + PIECE]

    def too_long(*_: object) -> bool:
        return time.thread_time() > end

    try:
        if known is None:  # the parser refuses it as an argument
            return parser.parse(piece, progress_callback=too_long)
        return parser.parse(piece, known, progress_callback=too_long)
    except ValueError:
        raise UnreadableError("it takes too long") from None


def _errors(root: tree_sitter.Node) -> list[Span]:
    found: list[Span] = []
    waiting = [root]
    while waiting and len(found) < _MANY:
        node = waiting.pop()
        if node.is_error or node.is_missing:
            found.append(span_of(node))
        elif node.has_error:
            waiting += node.children
    return found


def _stray(root: tree_sitter.Node) -> list[Span]:
    """Return the ends of blocks that CMake's grammar takes for commands, since they end nothing."""
    import tree_sitter

    query = tree_sitter.Query(grammar(Language.CMAKE), "(normal_command . (identifier) @name)")
    captures = tree_sitter.QueryCursor(query).captures(root)
    return [span_of(node) for node in captures.get("name", []) if (node.text or b"").lower() in _ENDINGS]


def _items(root: tree_sitter.Node) -> list[Span]:
    found: list[Span] = []
    waiting = [root]
    while waiting:
        for node in waiting.pop().children:
            if node.type in HOLDERS:
                waiting.append(node)
            elif node.is_named:
                found.append(span_of(node))
    return found


def span_of(node: tree_sitter.Node) -> Span:
    """Return the lines of a node; one that ends at the start of a line does not reach into it."""
    return Span(*_rows(node))


def areas_of(code: bytes, spans: Sequence[Span]) -> list[tuple[int, int]]:
    """Return where the lines of spans begin and end in a file, for `touches`."""
    starts = [0, *(match.end() for match in re.finditer(rb"\n", code))]
    beyond = [len(code) + 1] * (max((span.end for span in spans), default=0) + 1)
    starts += beyond[len(starts) :]
    return [(starts[span.start], starts[span.end]) for span in spans]


def touches(node: tree_sitter.Node, areas: Sequence[tuple[int, int]]) -> bool:
    """Whether a node has lines of one of the areas of a file; a node without text has the line it is in."""
    # Bytes and no lines, and no `any()`, which take more time: this is asked of most nodes of a file.
    start, end = node.start_byte, node.end_byte
    for first, last in areas:  # noqa: SIM110
        if start < last and (first < end or first == end == start):
            return True
    return False


def _rows(node: tree_sitter.Node) -> tuple[int, int]:
    (start, _), (end, column) = node.start_point, node.end_point
    return start, end if column == 0 and end > start else end + 1


@lru_cache(maxsize=32)
def compiles(data: bytes) -> str:
    """Return why Python's compiler refuses a file; empty if it accepts it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(data, "<file>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}" if error.lineno else error.msg
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        return str(error) or type(error).__name__
    return ""
