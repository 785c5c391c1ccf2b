"""Compare the number of arguments of calls with what the same file says about the function."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from build.porting.grammar import HOLDERS, Language, Span, areas_of, parse, touches
from build.porting.names import places

if TYPE_CHECKING:
    from tree_sitter import Node

_PARAMETERS = frozenset({
    "default_parameter", "identifier", "optional_parameter_declaration", "parameter_declaration",
    "typed_default_parameter", "typed_parameter",
})  # fmt: skip
_OPTIONAL = frozenset({"default_parameter", "optional_parameter_declaration", "typed_default_parameter"})
#: Parameters and arguments that stand for any number.
_ANY = frozenset({
    "...", "dictionary_splat", "dictionary_splat_pattern", "list_splat", "list_splat_pattern",
    "optional_type_parameter_declaration", "parameter_pack_expansion", "variadic_parameter",
    "variadic_parameter_declaration",
})  # fmt: skip
#: A call in C and C++, and in Python.
_CALLS = frozenset({"call", "call_expression"})
#: Number of other calls that agree from which they tell as much as a declaration.
_ENOUGH = 2

_Areas = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function by its bare name, on line `line` (from 0) of the file."""

    name: str
    arguments: int
    line: int


def judged(language: Language, code: bytes, spans: Sequence[Span]) -> dict[str, str]:
    """Return the functions that are called in `spans`, each with what is wrong with the number of arguments, if any.

    Functions about which the file says nothing are left out.
    """
    if language is Language.CMAKE:
        return {}
    root, areas = parse(language, code).root_node, areas_of(code, spans)
    calls = list(_calls(root, areas))
    names = {call.name for call in calls}
    wanted = _declarations(root) if calls else {}
    if names - wanted.keys():
        wanted = {**_habits(root, code, names, areas), **wanted}
    found: dict[str, str] = {}
    for call in calls:
        if call.name in wanted:
            found[call.name] = found.get(call.name, "") or _misfit(language, call, wanted[call.name])
    return found


def _misfit(language: Language, call: Call, wanted: Sequence[tuple[int, float]]) -> str:
    """Return what is wrong with a call; a default argument of C++ may be in another file, so it may have too few."""
    strict = language is Language.C
    if any(call.arguments <= most and (least <= call.arguments or not strict) for least, most in wanted):
        return ""
    most = max(most for _, most in wanted)
    return f"`{call.name}` at line {call.line + 1} has {call.arguments} arguments, it takes {most:g}"


def _calls(root: Node, areas: _Areas) -> Iterator[Call]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        met = [child for child in node.named_children if touches(child, areas)]
        waiting += met
        for child in met:
            call = _call(child)
            if call is not None:
                yield call


def _call(node: Node) -> Call | None:
    function, given = node.child_by_field_name("function"), node.child_by_field_name("arguments")
    if function is None or given is None or function.type != "identifier" or given.type != "argument_list":
        return None
    arguments = [item for item in given.named_children if item.type != "comment"]
    if any(item.type in _ANY for item in arguments) or given.has_error:
        return None
    return Call((function.text or b"").decode("utf-8", "replace"), len(arguments), node.start_point.row)


def _declarations(root: Node) -> dict[str, list[tuple[int, float]]]:
    """Return the least and the greatest number of arguments of the functions at the top of a file and in namespaces."""
    found: dict[str, list[tuple[int, float]]] = {}
    waiting = [root]
    while waiting:
        for child in waiting.pop().named_children:
            if child.type in HOLDERS - {"class_definition", "class_specifier", "struct_specifier"}:
                waiting.append(child)
            elif child.type in {"function_definition", "declaration"} and (declared := _declared(child)):
                found.setdefault(declared[0], []).append(declared[1])
    return found


def _declared(node: Node) -> tuple[str, tuple[int, float]] | None:
    """Return a function's name and numbers of arguments; None for what is no function or cannot be read."""
    name = node.child_by_field_name("name") or node.child_by_field_name("declarator")
    inner: Node | None = node
    while name is not None and name.type != "identifier":
        inner, name = name, name.child_by_field_name("declarator")
    given = inner.child_by_field_name("parameters") if inner and name else None
    if given is None or name is None or given.has_error:
        return None
    return (name.text or b"").decode("utf-8", "replace"), _accepted(given)


def _accepted(parameters: Node) -> tuple[int, float]:
    if any(item.type in _ANY for item in parameters.children) or (parameters.text or b"").split() == [b"()"]:
        return 0, math.inf
    items = [item for item in parameters.named_children if item.type in _PARAMETERS]
    if len(items) == 1 and (items[0].text or b"").strip() == b"void":
        items = []
    return sum(item.type not in _OPTIONAL for item in items), len(items)


def _habits(root: Node, code: bytes, names: Collection[str], areas: _Areas) -> dict[str, list[tuple[int, float]]]:
    """Return what the calls outside `areas` agree on; a function with few calls, or calls that differ, is left out."""
    seen: dict[str, list[int]] = {}
    for item in _calls_of(names, root, code):
        call = _call(item)
        if call and not touches(item, areas):
            seen.setdefault(call.name, []).append(call.arguments)
    return {
        name: [(numbers[0], numbers[0])]
        for name, numbers in seen.items()
        if len(numbers) >= _ENOUGH and len(set(numbers)) == 1
    }


def _calls_of(names: Collection[str], root: Node, code: bytes) -> Iterator[Node]:
    """Yield the calls of some functions, which are searched in the text: a file has many other calls."""
    for word in (name.encode() for name in names):
        for at in places(code, word):
            name = root.named_descendant_for_byte_range(at, at + len(word))
            parent = name.parent if name and name.type == "identifier" and name.text == word else None
            if parent and parent.type in _CALLS:
                yield parent
