"""Which nodes of a syntax tree have lines of an edit: told by bytes as by lines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from build.porting.grammar import Language, Span, areas_of, parse, span_of, touches

CODE = st.lists(
    st.sampled_from([b"int f(void)\n", b"{\n", b"}\n", b"x = g(1,\n", b"  2);\n", b"\n", b"int a", b";\r\n", b"("]),
    max_size=12,
).map(b"".join)


@given(CODE, st.integers(0, 12), st.integers(0, 3))
def test_nodes_with_lines_of_a_span(code: bytes, start: int, size: int) -> None:
    start = min(start, code.count(b"\n") + 1)
    span = Span(start, start + size)
    areas, waiting = areas_of(code, [span]), [parse(Language.C, code).root_node]
    while waiting:
        node = waiting.pop()
        waiting += node.children
        assert touches(node, areas) == span_of(node).meets(span)
