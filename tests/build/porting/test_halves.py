"""One half of a change that is placed without the other is named as such."""

from __future__ import annotations

import pytest

from build.porting.textport import TextPort, port_text
from build.series.verdicts import Verdict

from .code import LABELS, hunks, replaced, source

OLD = source()
EARLY, LATE = (f"  step_gamma_{n}(value, {n}); // part {n} of gamma\n" for n in (1, 10))
SPACE = "  step_gamma_2(value, 2); // part 2 of gamma\n"


def port(old: str, patched: str, new: str) -> TextPort:
    return port_text(old.encode(), new.encode(), hunks(old, patched), LABELS, path="a.c")


def both(first: str, second: str) -> str:
    return replaced(OLD, (EARLY, EARLY + first), (LATE, LATE + second))


PAIRS = [
    ("  copy = zmalloc(value);\n", "  zfree(copy);\n"),
    ("  pthread_mutex_lock(&state->guard);\n", "  pthread_mutex_unlock(&state->guard);\n"),
    ("  copy = EVP_MD_CTX_new();\n", "  EVP_MD_CTX_free(copy);\n"),
    ("  stack_push(copy, value);\n", "  stack_pop(copy);\n"),
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_the_other_half_needs_a_human(first: str, second: str) -> None:
    new = replaced(OLD, (EARLY, EARLY + "  someone_else(value);\n"))
    found = port(OLD, both(first, second), new)
    assert [hunk.verdict for hunk in found.hunks] == [Verdict.CONFLICT, Verdict.OFFSET]
    evidence = found.hunks[1].evidence
    assert evidence.startswith("it belongs to hunk 1, which needs a human: ")
    assert f"`{second.strip()}` goes with `{first.strip()}`" in evidence


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_the_other_half_is_upstream(first: str, second: str) -> None:
    """Upstream allocates as the patch does, and so frees in a way of its own: twice would be an error."""
    new = replaced(OLD, (EARLY, EARLY + first))
    found = port(OLD, both(first, second), new)
    assert [hunk.verdict for hunk in found.hunks] == [Verdict.UPSTREAM, Verdict.CONFLICT]
    assert "it belongs to hunk 1, which is upstream" in found.hunks[1].evidence
    assert found.new.decode() == new


def test_a_name_that_only_the_other_half_declares() -> None:
    new = replaced(OLD, (EARLY, EARLY + "  someone_else(value);\n"))
    found = port(OLD, both("  int fresh = 0;\n", "  value += fresh;\n"), new)
    assert [hunk.verdict for hunk in found.hunks] == [Verdict.CONFLICT, Verdict.OFFSET]
    assert "it alone declares 'fresh'" in found.hunks[1].evidence


def test_a_name_that_both_halves_declare() -> None:
    new = replaced(OLD, (EARLY, EARLY + "  someone_else(value);\n"))
    found = port(OLD, both("  Guard guard;\n  guard.hold();\n", "  Guard guard(value);\n  guard.hold();\n"), new)
    assert [hunk.verdict for hunk in found.hunks] == [Verdict.CONFLICT, Verdict.OFFSET]
    assert found.hunks[1].evidence == ""


@pytest.mark.parametrize(
    "second",
    [
        "  zfree(other);\n",
        "  report(copy);\n",
        "  pthread_mutex_unlock(&copy);\n",
        "}\n\nstatic void free_all(int copy)\n{\n  use(copy);\n",
    ],
)
def test_hunks_that_are_no_halves(second: str) -> None:
    new = replaced(OLD, (EARLY, EARLY + "  copy = zmalloc(value);\n"))
    found = port(OLD, both("  copy = zmalloc(value);\n", second), new)
    assert [hunk.verdict for hunk in found.hunks] == [Verdict.UPSTREAM, Verdict.OFFSET]
    assert "belongs" not in found.hunks[1].evidence
