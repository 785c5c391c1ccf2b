"""Hunks of one patch that stand or fall together, and code that the patch and upstream both move."""

from __future__ import annotations

from pathlib import Path

from build.porting.engine import PatchState
from build.series.verdicts import Verdict

from .code import NAMES, port, replaced, source
from .trees import port_one


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
