"""Find what a file defines more than once in the same block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from build.porting.grammar import HOLDERS, Language, Span, areas_of, parse, touches
from build.porting.lines import tokens

if TYPE_CHECKING:
    from tree_sitter import Node

_TYPES = {
    "class_specifier": "class",
    "enum_specifier": "enum",
    "struct_specifier": "struct",
    "union_specifier": "union",
}
#: CMake's commands that define what their first argument names.
_TARGETS = frozenset({b"add_custom_target", b"add_executable", b"add_library"})


def repeated(language: Language, code: bytes, spans: Sequence[Span]) -> dict[str, int]:
    """Return what is defined more than once in one block, with its greatest number of definitions.

    Blocks are those that hold the file's items, and all that `spans` touch.
    """
    names = _NAMES[language]
    found: dict[str, int] = {}
    areas = areas_of(code, spans)
    waiting = [parse(language, code).root_node]
    while waiting:
        children = waiting.pop().named_children
        defined = [name for child in children for name in names(child)]
        if len(defined) > len(set(defined)):
            counts = Counter(defined)
            found |= {name: max(count, found.get(name, 0)) for name, count in counts.items() if count > 1}
        waiting += [child for child in children if child.type in HOLDERS or touches(child, areas)]
    return found


def _of_braces(node: Node, *, overloads: bool) -> Iterable[str]:
    """Return what a child of a block defines in C or C++; with `overloads`, a function's parameters are in its name."""
    kind = node.type
    if kind == "template_declaration":
        return [name for child in node.named_children for name in _of_braces(child, overloads=True)]
    if kind == "function_definition":
        return _declared(node, "function", overloads=overloads)
    if kind in {"declaration", "field_declaration"}:
        what = "variable" if kind == "declaration" else "member"
        return [*_declared(node, what, overloads=overloads), *_type(node.child_by_field_name("type"))]
    if kind in {"parameter_declaration", "optional_parameter_declaration"}:
        return _declared(node, "parameter", overloads=False)
    if kind == "enumerator":
        return [f"enumerator `{_text(node.child_by_field_name('name'))}`"]
    if kind == "case_statement":
        value = node.child_by_field_name("value")
        return [f"`case {_text(value)}`" if value else "`default`"]
    return _type(node)


def _type(node: Node | None) -> list[str]:
    if node is None or node.type not in _TYPES or node.child_by_field_name("body") is None:
        return []
    name = node.child_by_field_name("name")
    return [f"{_TYPES[node.type]} `{_text(name)}`"] if name else []


def _declared(node: Node, what: str, *, overloads: bool) -> list[str]:
    """Return the names that a declaration declares; the declaration of a function is not that of a variable."""
    found = []
    for declarator in node.children_by_field_name("declarator"):
        inner, function = _unwrapped(declarator)
        if function is None:
            found.append(f"{what} `{_text(inner)}`")
            continue
        kind = what if node.type == "function_definition" else "declaration of"
        found.append(f"{kind} `{_text(function if overloads else inner)}`")
    return found


def _unwrapped(node: Node) -> tuple[Node, Node | None]:
    """Return the name in a declarator, and the declarator of the function that it names, if it names one."""
    function = None
    while True:
        inner = node.child_by_field_name("declarator")
        if inner is None and node.type in {"reference_declarator", "parenthesized_declarator"}:
            inner = next(iter(node.named_children), None)
        if inner is None:
            return node, function
        # `int (*name)(int)` is a variable.
        function = node if node.type == "function_declarator" else function
        function = None if node.type == "pointer_declarator" and function is not None else function
        node = inner


def _of_python(node: Node) -> Iterable[str]:
    """Return what a statement defines; a decorator may want the same name twice, as that of a property does."""
    kinds = {"function_definition": "function", "class_definition": "class"}
    if node.type not in kinds:
        return []
    return [f"{kinds[node.type]} `{_text(node.child_by_field_name('name'))}`"]


def _of_cmake(node: Node) -> Iterable[str]:
    if node.type in {"function_def", "macro_def"}:
        return [f"{node.type[:-4]} `{_first_argument(node.named_children[0])}`"]
    if node.type == "normal_command" and (node.named_children[0].text or b"").lower() in _TARGETS:
        return [f"target `{_first_argument(node)}`"]
    return []


def _first_argument(command: Node) -> str:
    given = next((child for child in command.named_children if child.type == "argument_list"), None)
    return _text(given.named_children[0]) if given and given.named_children else ""


def _text(node: Node | None) -> str:
    """Return a node's code on one line, the same however it is wrapped."""
    words = tokens([(node.text or b"") if node else b""])
    return b" ".join(words).decode("utf-8", "replace")[:100]


_NAMES: dict[Language, Callable[[Node], Iterable[str]]] = {
    Language.C: partial(_of_braces, overloads=False),
    Language.CPP: partial(_of_braces, overloads=True),
    Language.PYTHON: _of_python,
    Language.CMAKE: _of_cmake,
}
