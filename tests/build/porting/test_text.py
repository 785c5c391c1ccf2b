"""Every verdict a hunk of a text file can get, and the place it goes to."""

from __future__ import annotations

import pytest

from build.series.model import Method, Verdict

from .code import function, port, replaced, source

OLD = source()
GAMMA = "  step_gamma_5(value, 5); // part 5 of gamma\n"
FIX = "  check_patched(value);\n"
PATCHED = replaced(OLD, (GAMMA, GAMMA + FIX))
CHANGED = replaced(OLD, (GAMMA, "  step_gamma_5(patched(value), 5); // part 5 of gamma\n"))


def line(name: str, n: int) -> str:
    return f"  step_{name}_{n}(value, {n}); // part {n} of {name}\n"


def test_clean() -> None:
    found = port(OLD, PATCHED, replaced(OLD, (line("zeta", 3), "  other();\n")))
    assert [(h.verdict, h.method) for h in found.hunks] == [(Verdict.CLEAN, Method.EXACT)]
    assert b"  other();\n" in found.new
    assert found.new.count(FIX.encode()) == 1


def test_offset_says_by_how_much() -> None:
    new = "// one\n// two\n" + OLD
    found = port(OLD, PATCHED, new)
    assert [(h.verdict, h.offset) for h in found.hunks] == [(Verdict.OFFSET, 2)]
    assert found.new.decode() == "// one\n// two\n" + PATCHED
    assert found.new.split(b"\n")[found.lines[0] - 1 :][3] == FIX.rstrip().encode()


@pytest.mark.parametrize("n", [3, 4, 6, 7])
def test_drifted_context_is_merged_and_named(n: int) -> None:
    edit = (line("gamma", n), f"  step_gamma_{n}(value + 1, {n}); // part {n} of gamma\n")
    found = port(OLD, PATCHED, replaced(OLD, edit))
    assert [(h.verdict, h.method) for h in found.hunks] == [(Verdict.DRIFTED, Method.MERGE)]
    assert f"part {n} of gamma" in found.hunks[0].evidence
    assert found.new.decode() == replaced(PATCHED, edit)


def test_reindented_code_gets_reindented_lines() -> None:
    body = "".join(line("gamma", n) for n in range(12))
    inner = "".join("  " + line("gamma", n) for n in range(12))
    new = replaced(OLD, (body, "  if (ready(value)) {\n" + inner + "  }\n"))
    found = port(OLD, PATCHED, new)
    assert found.hunks[0].verdict is Verdict.DRIFTED
    assert "re-indented: 2 blanks deeper" in found.hunks[0].evidence
    assert b"  " + GAMMA.encode() + b"  " + FIX.encode() in found.new


def test_a_moved_function_is_found() -> None:
    new = source("gamma", "alpha", "beta", "delta", "epsilon", "zeta")
    found = port(OLD, PATCHED, new)
    assert found.hunks[0].verdict in {Verdict.OFFSET, Verdict.DRIFTED}
    assert found.new.decode() == replaced(new, (GAMMA, GAMMA + FIX))


def test_upstream_whole() -> None:
    found = port(OLD, PATCHED, "// more\n" + PATCHED)
    assert [(h.verdict, h.method) for h in found.hunks] == [(Verdict.UPSTREAM, Method.UPSTREAM)]
    assert "line" in found.hunks[0].evidence
    assert found.new.decode() == "// more\n" + PATCHED


def test_upstream_with_other_line_breaks() -> None:
    fix = "  check_patched(\n      value);\n"
    found = port(OLD, PATCHED, replaced(OLD, (GAMMA, GAMMA + fix)))
    assert found.hunks[0].verdict is Verdict.UPSTREAM
    assert "formatted differently" in found.hunks[0].evidence


def test_upstream_among_other_changes() -> None:
    long_fix = "  check_patched(value);\n  also_report_patched(value, 17);\n"
    patched = replaced(OLD, (GAMMA, GAMMA + long_fix))
    new = replaced(OLD, (GAMMA, GAMMA + "  other_before(value);\n" + long_fix + "  other_after(value);\n"))
    found = port(OLD, patched, new)
    assert found.hunks[0].verdict is Verdict.UPSTREAM
    assert found.new.decode() == new


def test_upstream_in_part_is_completed() -> None:
    both = "  check_patched(value);\n  also_report_patched(value, 17);\n"
    patched = replaced(OLD, (GAMMA, GAMMA + both))
    new = replaced(OLD, (GAMMA, GAMMA + FIX))
    found = port(OLD, patched, new)
    assert found.hunks[0].verdict is Verdict.PARTLY
    assert "1 of 2" in found.hunks[0].evidence
    assert found.new.decode() == patched


def test_one_of_two_hunks_upstream_is_said_and_the_other_goes_on() -> None:
    two = replaced(PATCHED, (line("zeta", 5), line("zeta", 5) + FIX.replace("patched", "zeta")))
    found = port(OLD, two, PATCHED)
    assert [(h.verdict, h.offset) for h in found.hunks] == [(Verdict.UPSTREAM, 0), (Verdict.OFFSET, 1)]
    assert found.new.decode() == two


@pytest.mark.parametrize(
    "edit",
    [
        (GAMMA, "  something_else(value);\n"),
        (GAMMA, ""),
        (GAMMA, GAMMA.replace("value", "value->inner")),
    ],
)
def test_a_changed_target_is_a_conflict_with_markers_there_only(edit: tuple[str, str]) -> None:
    new = replaced(OLD, edit)
    found = port(OLD, CHANGED, new)
    assert found.hunks[0].verdict is Verdict.CONFLICT
    assert found.new.decode() == new
    assert found.marked.count(b"<<<<<<< new\n") == 1
    outside = found.marked[: found.marked.index(b"<<<<<<<")] + found.marked[found.marked.index(b">>>>>>>") :]
    assert b"part 8 of gamma" in outside
    assert b"patched" not in outside.replace(b">>>>>>> patch", b"")
    between = found.marked[found.marked.index(b"|||||||") : found.marked.index(b"=======")]
    assert GAMMA.encode() in between


def test_other_hunks_are_placed_beside_a_conflict() -> None:
    patched = replaced(CHANGED, (line("zeta", 5), line("zeta", 5) + FIX))
    found = port(OLD, patched, replaced(OLD, (GAMMA, "  something_else(value);\n")))
    assert [h.verdict for h in found.hunks] == [Verdict.CONFLICT, Verdict.CLEAN]
    assert FIX.encode() in found.new
    assert FIX.encode() in found.marked


def test_lines_added_in_the_same_gap_are_a_conflict() -> None:
    found = port(OLD, PATCHED, replaced(OLD, (GAMMA, GAMMA + "  someone_else(value);\n")))
    assert found.hunks[0].verdict is Verdict.CONFLICT


def test_a_place_that_is_not_unique_is_left_to_a_human() -> None:
    near = "".join(line("gamma", n) for n in range(1, 11))
    found = port(OLD, PATCHED, replaced(OLD, (near, near + near)))
    assert found.hunks[0].verdict is Verdict.CONFLICT


def test_a_copy_under_another_name_is_told_apart() -> None:
    copy = function("gamma").replace("compute_gamma", "compute_copied")
    new = replaced(OLD, (function("gamma"), copy + "\n" + function("gamma")))
    found = port(OLD, PATCHED, new)
    if found.hunks[0].verdict is Verdict.CONFLICT:
        assert found.new.decode() == new
    else:
        assert found.new.decode().index(FIX) > found.new.decode().index("int compute_gamma(")


def test_a_hunk_is_not_put_into_another_function_with_the_same_lines() -> None:
    body = "  lock(value);\n  prepare(value, 1);\n  unlock(value);\n  release(value, 2);\n"
    old = OLD + f"\nint first(int value) {{\n{body}}}\n\nint second(int value) {{\n{body}}}\n"
    patched = old[: old.index("int second")] + old[old.index("int second") :].replace(
        "  prepare(value, 1);\n", "  prepare(value, 1);\n" + FIX
    )
    new = old[: old.index("\nint second")]
    found = port(old, patched, new)
    assert found.hunks[0].verdict is Verdict.CONFLICT
    assert found.new.decode() == new


@pytest.mark.parametrize("function", ["gamma", "beta", "zeta"])
def test_added_lines_that_stand_elsewhere_already_are_not_added_twice(function: str) -> None:
    fix = "  check_patched(value, 17);\n  also_report_patched(value);\n"
    patched = replaced(OLD, (GAMMA, GAMMA + fix))
    new = replaced(OLD, (line(function, 10), line(function, 10) + fix))
    found = port(OLD, patched, new)
    assert found.hunks[0].verdict is Verdict.CONFLICT
    assert "are already" in found.hunks[0].evidence


def test_line_ends_of_the_new_file_are_kept() -> None:
    found = port(OLD, PATCHED, OLD.replace("\n", "\r\n"))
    assert found.hunks[0].verdict is Verdict.DRIFTED
    assert found.new.decode() == PATCHED.replace("\n", "\r\n")


def test_no_newline_at_the_end() -> None:
    old, patched = OLD.rstrip("\n"), OLD.rstrip("\n") + "\n// the end"
    assert port(old, patched, "// more\n" + old).new.decode() == "// more\n" + patched
    found = port(old, old + "\n", old)
    assert found.new.decode() == old + "\n"


def test_removed_lines_that_upstream_removed_as_well() -> None:
    patched = replaced(OLD, (GAMMA, ""))
    found = port(OLD, patched, "// more\n" + patched)
    assert found.hunks[0].verdict is Verdict.UPSTREAM


def test_removed_lines_that_upstream_only_moved_are_not_called_upstream() -> None:
    two = "".join(line("gamma", n) for n in (5, 6))
    new = replaced(OLD, (two, ""), (line("beta", 4), line("beta", 4) + two))
    found = port(OLD, replaced(OLD, (two, "")), new)
    assert found.hunks[0].verdict is not Verdict.UPSTREAM


def test_an_import_finds_its_place_by_the_line_below_it_alone() -> None:
    """Its first use is further down, so that a line at the margin that each file has once is enough."""
    tail = "logger = logging.getLogger(__name__)\n\n\ndef first(value):\n    return logger.name + value\n"
    old = "import os\nimport six\n\nfrom first.module import thing_of_old\nfrom second.module import others\n\n" + tail
    new = "import pathlib\n\nfrom typing import Any\nfrom third.module import renamed_things\n\n" + tail
    extra = "from version import parse\n\n"
    found = port(old, replaced(old, ("logger = logging", extra + "logger = logging")), new)
    assert found.new.decode() == replaced(new, ("logger = logging", extra + "logger = logging"))
    other = "prepare_version(parse)\n\n"
    found = port(old, replaced(old, ("logger = logging", other + "logger = logging")), new)
    assert found.new.decode() == new


CHECK = "  if (check_quota(value)) return 1;\n"


def with_checks(*places: tuple[str, int]) -> str:
    return replaced(OLD, *((line(*place), line(*place) + CHECK) for place in places))


@pytest.mark.parametrize("places", [(("beta", 5), ("gamma", 5)), (("beta", 2), ("beta", 10))])
def test_of_the_same_lines_in_two_places_upstream_may_have_one(places: tuple[tuple[str, int], ...]) -> None:
    for number, there in enumerate(places):
        found = port(OLD, with_checks(*places), "int upstream_has_more;\n" + with_checks(there)).hunks
        assert found[number].verdict is Verdict.UPSTREAM
        assert found[1 - number].verdict is Verdict.CONFLICT
        assert "but" in found[1 - number].evidence
    both = port(OLD, with_checks(*places), "int upstream_has_more;\n" + with_checks(*places))
    assert [item.verdict for item in both.hunks] == [Verdict.UPSTREAM] * 2
    assert len(set(both.lines)) == 2


def test_the_same_lines_in_the_next_function_are_not_the_change() -> None:
    found = port(OLD, with_checks(("gamma", 5)), "int upstream_has_more;\n" + with_checks(("beta", 5)))
    assert found.hunks[0].verdict is Verdict.CONFLICT
    assert "in another function" in found.hunks[0].evidence
