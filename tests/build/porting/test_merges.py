"""Git's merge of a hunk: told by its diffs where that is possible, and the same as the command says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from build.porting import merges
from build.porting.groups import Edit, Placed, apply_edits, split
from build.porting.merges import Merge

from .code import NAMES, function, hunks, replaced, source

OLD = source()


def line(name: str, n: int) -> str:
    return f"  step_{name}_{n}(value, {n}); // part {n} of {name}\n"


def with_check(text: str, name: str, n: int) -> str:
    return replaced(text, (line(name, n), line(name, n) + f"  check_{name}(value);\n"))


def merge(new: str, theirs: str) -> tuple[Merge, list[Edit]]:
    """Return the merge of a patch's first hunk into `new`, and the edits of the old file."""
    base, ours = (text.encode().splitlines(keepends=True) for text in (OLD, new))
    placed = [split(hunk, number, hunk.first) for number, hunk in enumerate(hunks(OLD, theirs), 1)]
    made = Merge.of(base, ours, placed)
    return made, [Edit(g.start, g.end, g.added) for g in placed[0].groups]


def by(edits: list[Edit], lines: int) -> list[Edit]:
    return [Edit(edit.start + lines, edit.end + lines, edit.lines) for edit in edits]


BY_GIT = merges._by_git


def by_git(made: Merge, placed: Placed) -> bytes | None:
    return BY_GIT(made.base, made.ours, placed)


def joined(made: Merge, edits: list[Edit]) -> bytes:
    return b"".join(apply_edits(made.ours, edits))


@pytest.fixture
def no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> bytes:
        raise AssertionError("git merge-file is not needed")

    monkeypatch.setattr(merges, "_by_git", refused)


@pytest.mark.usefixtures("no_command")
def test_changes_that_are_apart_need_no_merge() -> None:
    made, edits = merge("// new\n// lines\n" + OLD, with_check(OLD, "gamma", 5))
    placed = split(hunks(OLD, with_check(OLD, "gamma", 5))[0], 1, edits[0].start - 3)
    assert not made.differs(placed, by(edits, 2))
    assert made.differs(placed, by(edits, 3))


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_a_copy_of_the_function_is_told_from_it(name: str, before: bool) -> None:
    """The copy differs from the original in its first line, so one end of it is equal to the original's."""
    original = function(name)
    copy = original.replace(f"compute_{name}", "compute_again")
    theirs = with_check(OLD, name, 5)
    both = f"{copy}\n{original}" if before else f"{original}\n{copy}"
    made, edits = merge(replaced(OLD, (original, both)), theirs)
    hunk = hunks(OLD, theirs)[0]
    placed = split(hunk, 1, hunk.first)
    wanted = by_git(made, placed)
    for place in (edits, by(edits, copy.count("\n") + 1)):
        assert made.differs(placed, place) == (wanted is not None and wanted != joined(made, place))


@given(
    st.sampled_from(NAMES),
    st.integers(3, 8),
    st.lists(
        st.tuples(st.sampled_from(NAMES), st.integers(0, 11), st.booleans()), max_size=5, unique_by=lambda c: c[:2]
    ),
    st.integers(-2, 3),
)
@settings(max_examples=40, deadline=None)
def test_it_is_what_the_command_makes(name: str, n: int, changes: list[tuple[str, int, bool]], off: int) -> None:
    """Upstream removes lines, or adds some, near the hunk or far from it."""
    new = OLD
    for other, at, removes in changes:
        new = replaced(new, (line(other, at), "" if removes else line(other, at) + f"  more_{other}_{at}();\n"))
    theirs = with_check(OLD, name, n)
    made, edits = merge(new, theirs)
    hunk = hunks(OLD, theirs)[0]
    placed = split(hunk, 1, hunk.first)
    wanted = by_git(made, placed)
    place = by(edits, off)
    assert made.differs(placed, place) == (wanted is not None and wanted != joined(made, place))
