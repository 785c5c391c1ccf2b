"""An added line that uses a name which upstream has renamed is not put in; the conflict proposes the new name."""

from __future__ import annotations

import pytest

from build.porting.alignment import align
from build.porting.names import declared, used
from build.porting.renames import find
from build.porting.textport import TextPort, port_text
from build.series.verdicts import Verdict

from .code import LABELS, hunks, replaced, source

OLD = replaced(
    source(),
    ("  step_beta_3(value, 3); // part 3 of beta\n", "  Curl_dyn_init(&buffer, 3); // part 3 of beta\n"),
    ("  step_beta_6(value, 6); // part 6 of beta\n", "  Curl_dyn_add(&buffer, value); // part 6 of beta\n"),
    ("  step_beta_9(value, 9); // part 9 of beta\n", "  Curl_dyn_free(&buffer); // part 9 of beta\n"),
)
NEW = OLD.replace("Curl_dyn_", "curlx_dyn_")
GAMMA = "  step_gamma_5(value, 5); // part 5 of gamma\n"


def port(old: str, patched: str, new: str) -> TextPort:
    return port_text(old.encode(), new.encode(), hunks(old, patched), LABELS, path="a.c")


def behind(text: str, at: str, more: str) -> str:
    return replaced(text, (at, at + more))


@pytest.mark.parametrize("name", ["free", "add", "addn"])
def test_an_old_name_is_not_brought_back(name: str) -> None:
    """`addn` is in neither file: the beginning that all the others lost tells its new name."""
    found = port(OLD, behind(OLD, GAMMA, f"  Curl_dyn_{name}(&other);\n"), NEW)
    assert [hunk.verdict for hunk in found.hunks] == [Verdict.CONFLICT]
    assert f"`Curl_dyn_{name}` is `curlx_dyn_{name}` now" in found.hunks[0].evidence
    assert found.new.decode() == NEW
    assert f"=======\n  curlx_dyn_{name}(&other);\n>>>>>>> patch\n" in found.marked.decode()


def test_a_hunk_that_conflicts_anyway_gets_the_proposal_too() -> None:
    patched = replaced(OLD, ("  Curl_dyn_free(&buffer);", "  Curl_dyn_free(&buffer), buffer = NULL;"))
    found = port(OLD, patched, NEW)
    assert [hunk.verdict for hunk in found.hunks] == [Verdict.CONFLICT]
    assert "  curlx_dyn_free(&buffer), buffer = NULL;" in found.marked.decode()


def test_a_name_that_is_still_there_is_used() -> None:
    new = behind(NEW, "  step_zeta_5(value, 5); // part 5 of zeta\n", "  Curl_dyn_free(&old);\n")
    found = port(OLD, behind(OLD, GAMMA, "  Curl_dyn_free(&other);\n"), new)
    assert [hunk.verdict for hunk in found.hunks] == [Verdict.CLEAN]


def test_a_name_that_the_patch_declares_is_its_own() -> None:
    old = OLD.replace("value, 7)", "count, 7)")
    new = old.replace("count, 7)", "counts, 7)")
    patched = behind(old, GAMMA, "  int count = 1;\n  use(count);\n")
    assert [hunk.verdict for hunk in port(old, patched, new).hunks] == [Verdict.DRIFTED]
    bare = port(old, behind(old, GAMMA, "  use(count);\n"), new)
    assert "`count` is `counts` now" in bare.hunks[0].evidence


def test_one_call_that_became_another_is_no_rename() -> None:
    new = replaced(OLD, ("  step_beta_4(value, 4);", "  elsewhere(value, 4);"))
    found = port(OLD, behind(OLD, GAMMA, "  step_beta_4(value, 5);\n"), new)
    assert [hunk.verdict for hunk in found.hunks] == [Verdict.CLEAN]


def lines(text: str) -> list[bytes]:
    return text.encode().splitlines(keepends=True)


def test_what_counts_as_a_rename() -> None:
    renames = find(align(lines(OLD), lines(NEW)))
    assert renames.of(b"Curl_dyn_reset") == b"curlx_dyn_reset"
    assert renames.of(b"buffer") is None
    for old, new in (("NULL", "nullptr"), ("gint64", "guint64"), ("size_t", "uint32_t")):
        modern = find(align(*(lines(OLD.replace("value, 3", f"{name}, 3")) for name in (old, new))))
        assert modern.of(old.encode()) is None
    twice = OLD.replace("part 3", "x")
    assert find(align(lines(twice), lines(twice))).names == {}


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("  int count = 1;", {"count"}),
        ("  char *text, rest;", {"text"}),
        ("  auto& item : items", {"item"}),
        ("static void name(struct thing *where)", {"name", "thing", "where"}),
        ("def step(value):", {"step"}),
        ("  total = 1", {"total"}),
        ("  AutoNcclGroup group_guard(comm, true);", {"group_guard"}),
        ("  std::vector<int> items{1, 2};", {"items"}),
        ("  return make(count);", set()),
        ("  else make(count);", set()),
        ("  return count;", set()),
        ("  total = 1;", set()),
        ('  puts("int count;"); // int count;', set()),
        ("  else count = 2;", set()),
        ("#ifdef GSSAPI", set()),
    ],
)
def test_declared_names(code: str, names: set[str]) -> None:
    found = {name.decode() for name in declared([code.encode() + b"\n"])}
    assert names <= found
    assert found - names <= {"rest", "items"}


def test_used_names() -> None:
    assert used([b'  a_b->c(d1, "text", 0x1f); // word\n', b"/* no */ # hash\n"]) == {b"a_b", b"d1"}
