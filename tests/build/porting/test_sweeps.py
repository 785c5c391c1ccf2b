"""Many equal changes in one file, as in manual pages: a person looks only at those that may have two places."""

from __future__ import annotations

from collections import Counter

import pytest

from build.porting.textport import TextPort
from build.series.verdicts import Verdict

from .code import port

COUNT = 30
BLOCK = [".PP", ".RS 4", ".EX", ".nh", ".B run", ".nh", ".EE", ".RE", ".PP"]


def text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def without(lines: list[str]) -> list[str]:
    return [line for line in lines if line != ".nh"]


def option(number: int) -> list[str]:
    words = f"It does the part {number} of the work, which is described below."
    return [".IP", rf"\-o{number} arg", ".in +4", ".nh", words, "It is good.", "More of it.", ".ad", ".sp"]


def options() -> list[str]:
    sections = ([f".SH PART {n // 10}"] if n % 10 == 0 else [] for n in range(COUNT))
    return [line for n, section in enumerate(sections) for line in (*section, *option(n))]


def rewritten(lines: list[str]) -> list[str]:
    """Every line of text and every macro but the one in question is another one."""
    changed = {".in +4": ".in +8", ".ad": ".ad b", ".sp": ".sp 1"}
    return [changed.get(line, line if line[0] == "." else f"Now: {line.lower()}") for line in lines]


def blocks() -> list[str]:
    """Equal blocks with equal lines around them: only the words further out tell them apart."""
    return [line for n in range(COUNT) for line in (f"Text about the option number {n}.", *BLOCK, f"After option {n}.")]


def verdicts(found: TextPort) -> Counter[bool]:
    return Counter(result.verdict.needs_human for result in found.hunks)


def test_equal_removals_in_a_page_that_was_rewritten() -> None:
    old = options()
    found = port(text(old), text(without(old)), text(rewritten(old)))
    assert verdicts(found) == {False: COUNT}
    assert {result.verdict for result in found.hunks} == {Verdict.DRIFTED}
    assert found.new.decode() == text(without(rewritten(old)))


@pytest.mark.parametrize("more", [False, True], ids=["one is gone", "there is one more"])
def test_where_there_are_two_assignments_a_person_looks(more: bool) -> None:
    """Only in its section: in the other two there is one assignment."""
    old, new = options(), rewritten(options())
    at = new.index(".nh", new.index(".SH PART 1") + 40)
    new[at : at + 1] = [".nh", ".br", ".nh"] if more else []
    found = port(text(old), text(without(old)), text(new))
    assert [result.verdict.needs_human for result in found.hunks] == [False] * 10 + [True] * 10 + [False] * 10
    first, second, third = (new.index(f".SH PART {n}") for n in range(3))
    assert found.new.decode() == text([*without(new[first:second]), *new[second:third], *without(new[third:])])


def test_lines_that_the_patch_keeps_elsewhere_are_no_sweep() -> None:
    """Of the equal lines of a section the patch removes some: which of them are left cannot be told."""
    old, new = options(), rewritten(options())
    keep = old.index(".nh", old.index(".SH PART 1") + 40)
    patched = [line for n, line in enumerate(old) if line != ".nh" or n == keep]
    found = port(text(old), text(patched), text(new))
    assert [result.verdict.needs_human for result in found.hunks] == [False] * 10 + [True] * 9 + [False] * 10


@pytest.mark.parametrize("now", [[*BLOCK[:3], ".nh 1", *BLOCK[4:]], [], BLOCK * 2], ids=["other", "gone", "twice"])
def test_an_equal_block_that_changed_leaves_the_others_their_places(now: list[str]) -> None:
    """Of thirty equal blocks one is another one, is gone, or is there twice."""
    old, new = blocks(), blocks()
    at = new.index("Text about the option number 12.") + 1
    new[at : at + len(BLOCK)] = now
    found = port(text(old), text(without(old)), text(new))
    assert verdicts(found) == {False: COUNT - 1, True: 1}
    assert found.hunks[12].verdict is Verdict.CONFLICT
    first, last = (new.index(line) for line in ("Text about the option number 12.", "After option 12."))
    assert found.new.decode() == text([*without(new[:first]), *new[first:last], *without(new[last:])])
