"""Hunks of one patch that stand or fall together, and code that the patch and upstream both move."""

from __future__ import annotations

from pathlib import Path

from build.porting.engine import PatchState
from build.porting.trees import FileState
from build.series.model import Verdict

from .code import NAMES, port, replaced, source
from .trees import Files, port_one


def line(name: str, n: int) -> str:
    return f"  step_{name}_{n}(value, {n}); // part {n} of {name}\n"


def with_checks(text: str, names: tuple[str, ...], n: int = 5) -> str:
    """The same with a check in each of the functions `names`."""
    pairs = [(line(name, n), line(name, n) + f"  check_the_state_of_{name}(value, {n}, 17);\n") for name in names]
    return replaced(text, *pairs)


def test_one_hunk_that_fits_goes_to_a_human_where_the_rest_of_the_patch_is_upstream(tmp_path: Path) -> None:
    old = source()
    patched, new = with_checks(old, NAMES[:5]), with_checks(old, NAMES[:4])
    found = port_one(tmp_path, {"a.c": old.encode()}, {"a.c": patched.encode()}, {"a.c": new.encode()})
    assert [item.verdict for item in found.verdicts] == [Verdict.UPSTREAM] * 4 + [Verdict.CONFLICT]
    assert "4 of the patch's 5 hunks are upstream" in found.verdicts[-1].evidence
    assert found.state is PatchState.NEEDS_HUMAN
    assert found.files["a.c"].data == new.encode() if found.files["a.c"] else False
    assert found.marked


def test_hunks_that_fit_are_placed_where_as_many_are_upstream(tmp_path: Path) -> None:
    old = source()
    patched, new = with_checks(old, NAMES), with_checks(old, NAMES[:3])
    found = port_one(tmp_path, {"a.c": old.encode()}, {"a.c": patched.encode()}, {"a.c": new.encode()})
    assert [item.verdict.needs_human for item in found.verdicts] == [False] * 6


def test_a_hunk_that_shares_a_new_name_with_one_that_is_upstream_goes_to_a_human(tmp_path: Path) -> None:
    old = source()
    definition = "static int is_valid_owner(int value) { return value > 0 && value < LIMIT_OF_OWNERS; }\n\n"
    use = "  if (!is_valid_owner(value)) return 1;\n"
    defined = replaced(old, ("int compute_beta(int value) {\n", definition + "int compute_beta(int value) {\n"))
    patched = replaced(defined, (line("zeta", 5), line("zeta", 5) + use))
    found = port_one(tmp_path, {"a.c": old.encode()}, {"a.c": patched.encode()}, {"a.c": defined.encode()})
    assert [item.verdict for item in found.verdicts] == [Verdict.UPSTREAM, Verdict.CONFLICT]
    assert "is_valid_owner" in found.verdicts[1].evidence


def test_an_include_alone_goes_to_a_human_where_its_use_is_upstream(tmp_path: Path) -> None:
    old = source()
    used = with_checks(old, ("zeta",))
    patched = replaced(used, ("#include <second.h>\n", "#include <second.h>\n#include <third.h>\n"))
    found = port_one(tmp_path, {"a.c": old.encode()}, {"a.c": patched.encode()}, {"a.c": used.encode()})
    assert [item.verdict for item in found.verdicts] == [Verdict.CONFLICT, Verdict.UPSTREAM]
    assert "only makes names known" in found.verdicts[0].evidence


def test_what_the_patch_moves_is_not_removed_where_upstream_moved_it() -> None:
    block = "".join(f'  register_property("{name}_of_roaming", read_{name});\n' for name in ("time", "state", "length"))
    old = source("alpha", "beta", "gamma", "delta")
    start = replaced(old, (line("alpha", 3), line("alpha", 3) + block))
    there = replaced(old, (line("delta", 8), line("delta", 8) + block))
    new = replaced(there, (line("alpha", 2), "  prepare_something_else(value);\n"))
    found = port(start, there, new)
    assert found.new.decode() == new, [hunk.evidence for hunk in found.hunks]


def include(text: str) -> str:
    return replaced(text, ("#include <second.h>\n", "#include <second.h>\n#include <third.h>\n"))


def test_an_include_stays_where_the_rest_was_not_recognised(tmp_path: Path) -> None:
    old = source()
    patched = include(replaced(old, (line("zeta", 5), "  other_step(value);\n")))
    new = replaced(old, (line("zeta", 5), "  another_way(value);\n"))
    found = port_one(tmp_path, {"a.c": old.encode()}, {"a.c": patched.encode()}, {"a.c": new.encode()})
    assert [item.verdict for item in found.verdicts] == [Verdict.CLEAN, Verdict.CONFLICT]


def test_an_include_goes_to_a_human_where_upstream_may_have_the_rest_in_another_form(tmp_path: Path) -> None:
    old = source()
    body = (
        "  message = describe_error(ERROR_FILE_NOT_FOUND);\n"
        "  require_text_in(output, message);\n  release_text(message);\n"
    )
    more = body.replace("  require_text_in(output", "  show_both(output, message);\n  require_one_of(output")
    patched = include(replaced(old, (line("zeta", 5), body)))
    new = replaced(old, (line("zeta", 5), "#ifdef WINDOWS\n" + more + "#endif\n" + line("zeta", 5)))
    found = port_one(tmp_path, {"a.c": old.encode()}, {"a.c": patched.encode()}, {"a.c": new.encode()})
    assert [item.verdict for item in found.verdicts] == [Verdict.CONFLICT, Verdict.CONFLICT]
    assert "only makes names known" in found.verdicts[0].evidence
    assert "seems to be at line" in found.verdicts[1].evidence


def test_blanks_alone_are_not_changed(tmp_path: Path) -> None:
    old = replaced(source(), (line("alpha", 5), line("alpha", 5)[:-1] + "  \n"))
    patched = replaced(source(), (line("zeta", 5), "  other_step(value);\n"))
    new = replaced(old, (line("zeta", 5), "  another_way(value);\n"))
    found = port_one(tmp_path, {"a.c": old.encode()}, {"a.c": patched.encode()}, {"a.c": new.encode()})
    assert [item.verdict for item in found.verdicts] == [Verdict.CONFLICT, Verdict.CONFLICT]
    assert "only changes blanks" in found.verdicts[0].evidence


def test_a_new_file_of_a_patch_that_is_mostly_upstream_goes_to_a_human(tmp_path: Path) -> None:
    old = source()
    patched = with_checks(old, NAMES[:4])
    change: Files = {"a.c": patched.encode(), "notes.txt": b"What was wrong, and since when.\n"}
    found = port_one(tmp_path, {"a.c": old.encode()}, change, {"a.c": patched.encode()})
    assert [item.verdict for item in found.verdicts] == [Verdict.UPSTREAM] * 4 + [Verdict.CONFLICT]
    assert "notes.txt" not in found.files
    assert b"What was wrong" in (found.marked["notes.txt"] or FileState("", b"")).data


def test_lines_that_stand_beside_the_place_already_are_not_put_in_again(tmp_path: Path) -> None:
    check = "  if (discard_the_body(value) != DISCARDED) {\n    keep_alive_flag = 0;\n    reset_timer(value);\n  }\n"
    old = replaced(source(), (line("beta", 5), line("beta", 5) + check))
    patched = replaced(source(), (line("beta", 5), line("beta", 5) + check + check))
    new = "int upstream_has_more;\n" + old
    found = port_one(tmp_path, {"a.c": old.encode()}, {"a.c": patched.encode()}, {"a.c": new.encode()})
    assert "would be there twice" in found.verdicts[0].evidence
