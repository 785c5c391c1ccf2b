"""Names and words that are looked up in a file are those that reading all of it finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from build.porting.lines import PARTED, words, words_by_line
from build.porting.lookup import Lookup
from build.porting.names import NAMED, used

LINE = st.lists(
    st.sampled_from(["alphaBeta", "alpha", "beta_2", "ALPHA", "x.gamma", '"alpha"', "// beta_2", "(", " ", "#", "*"]),
    max_size=6,
).map(lambda parts: "".join(parts).encode() + b"\n")
ITEMS = [b"alphaBeta", b"alpha", b"beta_2", b"beta", b"ALPHA", b"gamma", b"amma", b"2", b"alp", b"none"]


def ordered(lines: Sequence[bytes]) -> set[bytes]:
    return set(words(lines))


@given(st.lists(LINE, max_size=8))
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(("of", "pairs", "folded"), [(used, NAMED, False), (ordered, PARTED, True)])
def test_what_is_looked_up(
    of: Callable[[Sequence[bytes]], set[bytes]], pairs: frozenset[bytes], folded: bool, inside: bool, lines: list[bytes]
) -> None:
    every, lookup = of(lines), Lookup(lines, of, pairs if inside else frozenset(), folded=folded)
    for _ in range(2):  # the second answer is kept from the first
        assert {item for item in ITEMS if item in lookup} == every.intersection(ITEMS)
    for head in ITEMS:
        assert lookup.begins(head) == any(item.startswith(head) for item in every)


def test_a_line_is_read_once() -> None:
    read: list[Sequence[bytes]] = []

    def of(lines: Sequence[bytes]) -> set[bytes]:
        read.append(lines)
        return used(lines)

    lookup = Lookup([b"one two three " * 1000], of)
    assert [name in lookup for name in (b"one", b"three", b"hree", b"four")] == [True, True, False, False]
    assert len(read) == 1


def test_a_line_with_the_letters_inside_another_name_is_not_read() -> None:
    read: list[Sequence[bytes]] = []

    def of(lines: Sequence[bytes]) -> set[bytes]:
        read.append(lines)
        return used(lines)

    lookup = Lookup([b"one_two = none;\n"], of, NAMED)
    assert not any([b"one" in lookup, b"two" in lookup, lookup.begins(b"two"), lookup.begins(b"ne")])
    assert not read


@given(st.lists(LINE, max_size=6), st.sampled_from([b"", b"last", b"last\r", b"\xc3\xa9 aB"]))
def test_the_words_of_lines_are_those_of_each(lines: list[bytes], last: bytes) -> None:
    lines = [*lines, last]
    assert words_by_line(lines) == [(word, n) for n, line in enumerate(lines) for word in words([line])]
