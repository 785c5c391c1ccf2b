"""git's own merge as a second opinion about a hunk's place."""

from __future__ import annotations

import pytest

from build.porting.alignment import align
from build.porting.groups import split
from build.porting.placement import HunkResult
from build.porting.textport import crosscheck
from build.series.model import Method, Verdict

from .code import NAMES, function, hunks, replaced, source

OLD = source()


def crosschecked(new: str, *names: str, lines: int) -> list[Verdict]:
    """Return the verdicts of hunks that put a check into functions, `lines` further down than they were in OLD."""
    added = [(f"  step_{n}_5(value, 5); // part 5 of {n}\n", f"  check_{n}(value);\n") for n in names]
    found = hunks(OLD, replaced(OLD, *((line, line + more) for line, more in added)))
    placed = [split(hunk, number, hunk.first) for number, hunk in enumerate(found, 1)]
    results = [
        HunkResult(Verdict.DRIFTED, Method.MERGE, edits=tuple(g.moved(lines) for g in item.groups)) for item in placed
    ]
    base, ours = (text.encode().splitlines(keepends=True) for text in (OLD, new))
    return [item.verdict for item in crosscheck(align(base, ours), placed, results)]


def test_what_git_merges_elsewhere_is_left_to_a_human() -> None:
    new = "// new\n// lines\n" + OLD
    assert crosschecked(new, "gamma", "beta", lines=2) == [Verdict.DRIFTED] * 2
    assert crosschecked(new, "gamma", "beta", lines=3) == [Verdict.CONFLICT] * 2


def test_a_conflict_of_git_says_nothing_about_other_hunks() -> None:
    new = "// new\n" + replaced(OLD, ("step_gamma_6(value, 6)", "step_gamma_6(value, 7)"))
    assert crosschecked(new, "gamma", "beta", lines=1) == [Verdict.DRIFTED] * 2
    assert crosschecked(new, "gamma", "beta", lines=2) == [Verdict.CONFLICT, Verdict.DRIFTED]


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_a_copy_of_the_function_is_told_from_it(name: str, before: bool) -> None:
    """The copy differs from the original in its first line, so one end of it is equal to the original's."""
    copy, original = function(name).replace(f"compute_{name}", "compute_again"), function(name)
    both = f"{copy}\n{original}" if before else f"{original}\n{copy}"
    lines = [0, copy.count("\n") + 1]
    verdicts = [crosschecked(replaced(OLD, (original, both)), name, lines=n)[0] for n in lines]
    assert sorted(verdict.value for verdict in verdicts) == ["conflict", "drifted"]
