"""Many equal changes in one file, as in manual pages: a person looks only at those that may have two places."""

from __future__ import annotations

from collections import Counter

import pytest

from build.porting.textport import TextPort
from build.series.model import Verdict

from .code import port

COUNT = 30
BLOCK = [".PP", ".RS 4", ".EX", ".nh", ".B run", ".nh", ".EE", ".RE", ".PP"]


def text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def without(lines: list[str]) -> list[str]:
    return [line for line in lines if line != ".nh"]


def blocks() -> list[str]:
    """Equal blocks with equal lines around them: only the words further out tell them apart."""
    return [line for n in range(COUNT) for line in (f"Text about the option number {n}.", *BLOCK, f"After option {n}.")]


def verdicts(found: TextPort) -> Counter[bool]:
    return Counter(result.verdict.needs_human for result in found.hunks)


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
