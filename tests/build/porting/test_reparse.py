"""A text that is parsed by the tree of another one gets the tree that it gets by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from build.porting import grammar
from build.porting.grammar import Language, parse, parse_like
from build.porting.groups import Edit
from build.porting.reparse import Like, edited
from build.porting.soundness import Change, change
from build.series.inspect import Text

if TYPE_CHECKING:
    from tree_sitter import Node, Tree

FUNCTION = b"""static int
%s(int count, const char *name)
{
\tif (count > 3)
\t\treturn (call(name, count));
\tfor (int n = 0; n < count; n++) {
\t\tputs(name);
\t}
\treturn 0;
}

"""
CODE = b"".join(FUNCTION % name for name in (b"first", b"second", b"third", b"last"))
OPEN = CODE.replace(b"\tif (count > 3)", b"\tif (count > 3", 2)
WHOLE = b"int\nadded(void)\n{\n  return 1;\n}\n"


def nodes(node: Node) -> list[object]:
    """Return all that a tree says."""
    own = node.type, node.byte_range, node.start_point, node.end_point, node.is_missing, node.has_error
    return [own, [nodes(child) for child in node.children]]


def parse_alone(code: bytes) -> Tree:
    """Return a text's tree when no other one is kept, and keep none."""
    grammar._TREES.clear()
    tree = parse(Language.C, code)
    grammar._TREES.clear()
    return tree


def edit(code: bytes, *edits: tuple[int, int, bytes]) -> Change:
    lines = Text(code).lines
    return change(lines, [Edit(start, end, tuple(Text(new).lines)) for start, end, new in edits])


def like(changed: Change, code: bytes = b"") -> Like:
    old, new = ([(span.start, span.end) for span in side] for side in (changed.old, changed.new))
    return Like(code or changed.before, old, new)


@pytest.mark.parametrize(
    "changed",
    [
        edit(CODE, (12, 12, WHOLE)),
        edit(CODE, (0, 0, b"int before;\n"), (44, 44, WHOLE)),
        edit(CODE, (3, 5, b""), (20, 21, b"\treturn 1;\n\treturn 2;\n"), (30, 31, b"x;\n")),
        edit(CODE, (0, 3, b""), (40, 44, b"")),
        edit(CODE[:-2], (42, 42, b"\tputs(name);\n")),
        edit(CODE[:-2], (43, 43, b"int behind;")),
        edit(CODE, (25, 26, b"")),
        edit(OPEN, (26, 27, b"\tif (count > 4) {\n"), (28, 28, b"\t}\n")),
        edit(OPEN, (3, 4, b"\tif (count > 4)\n")),
    ],
)
def test_the_tree_is_the_same_as_without_the_other_one(changed: Change) -> None:
    for known, code, found in (
        (changed.before, changed.after, like(changed)),
        (changed.after, changed.before, Like(changed.after, like(changed).new, like(changed).old)),
    ):
        root = parse_alone(code).root_node
        alone = nodes(root)
        tree = parse(Language.C, known)
        told = edited(tree, found, code)
        assert told is not None
        assert told.root_node.end_point == root.end_point
        parse_like(Language.C, code, found)
        assert list(grammar._TREES) == [(Language.C, known), (Language.C, code)]
        assert nodes(parse(Language.C, code).root_node) == alone
        assert nodes(tree.root_node) != alone


def test_lines_that_differ_elsewhere_are_noticed() -> None:
    changed = edit(CODE, (12, 12, WHOLE))
    other = changed.after.replace(b"third(int count", b"third(int(count")
    alone = nodes(parse_alone(other).root_node)
    parse(Language.C, changed.before)
    parse_like(Language.C, other, like(changed))
    assert nodes(parse(Language.C, other).root_node) == alone


def test_another_form_of_a_file_is_recognised_by_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    line = b"\t\tputs(name);"
    form = CODE.replace(line, b" " * len(line), 1)
    told: list[bool] = []

    def parsed(*given: object) -> object:
        told.append(given[-1] is not None)
        return really(*given)  # type: ignore[arg-type]

    really = grammar._parsed
    alone = nodes(parse_alone(form).root_node)
    monkeypatch.setattr(grammar, "_parsed", parsed)
    parse(Language.C, CODE)
    assert nodes(parse(Language.C, form).root_node) == alone
    parse(Language.CPP, form)
    assert told == [False, True, False]


def test_a_text_that_differs_much_is_parsed_alone() -> None:
    tree = parse(Language.C, CODE)
    assert edited(tree, Like(CODE), CODE.replace(b"count", b"other")) is None
    assert edited(tree, Like(CODE), b"") is None
