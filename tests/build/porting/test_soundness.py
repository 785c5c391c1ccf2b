"""A file that could be read before a port can be read after it, or the port is left to a human."""

from __future__ import annotations

from pathlib import Path

import pytest

from build.porting.engine import PatchState
from build.porting.fileport import apply_hunks
from build.porting.soundness import change, check
from build.porting.textport import TextPort, port_text
from build.series.inspect import Text
from build.series.verdicts import Verdict

from .code import LABELS, hunks, replaced, source
from .trees import port_one

OLD = source()


def line(name: str, n: int) -> str:
    return f"  step_{name}_{n}(value, {n}); // part {n} of {name}\n"


def port(old: str, patched: str, new: str, path: str = "a.c") -> TextPort:
    found = port_text(old.encode(), new.encode(), hunks(old, patched), LABELS, path=path)
    assert apply_hunks(old.encode(), hunks(old, patched)) == patched.encode()
    return found


def verdicts(found: TextPort) -> list[Verdict]:
    return [hunk.verdict for hunk in found.hunks]


def after(text: str, *pairs: tuple[str, str]) -> str:
    """`text` with lines put behind others."""
    return replaced(text, *((at, at + more) for at, more in pairs))


OPEN, CLOSE = "  if (patched(value)) {\n", "  }\n"


def test_a_stray_brace_is_left_to_a_human() -> None:
    """Upstream opens the same block and closes it earlier."""
    patched = after(OLD, (line("gamma", 1), OPEN), (line("gamma", 10), CLOSE))
    new = after(OLD, (line("gamma", 1), OPEN), (line("gamma", 5), CLOSE))
    found = port(OLD, patched, new)
    assert verdicts(found) == [Verdict.UPSTREAM, Verdict.CONFLICT]
    assert "1 more '}' than '{'" in found.hunks[1].evidence
    assert found.new.decode() == new
    assert b"<<<<<<<" in found.marked


def test_only_the_hunk_that_breaks_the_file_is_left() -> None:
    patched = after(OLD, (line("gamma", 1), OPEN), (line("gamma", 10), CLOSE), (line("zeta", 5), "  fine(value);\n"))
    new = after(OLD, (line("gamma", 1), OPEN), (line("gamma", 5), CLOSE))
    found = port(OLD, patched, new)
    assert verdicts(found) == [Verdict.UPSTREAM, Verdict.CONFLICT, Verdict.OFFSET]
    assert b"  fine(value);\n" in found.new


def test_each_hunk_that_breaks_the_file_is_found() -> None:
    """One hunk closes a block twice, another one defines a function twice; the third is right."""
    closed = after(OLD, (line("beta", 1), OPEN), (line("beta", 10), CLOSE), (line("epsilon", 5), "  fine(value);\n"))
    patched = replaced(closed, ("int compute_zeta(", BODY + "int compute_zeta("))
    new = after(OLD, (line("beta", 1), OPEN), (line("beta", 5), CLOSE))
    new = replaced(new, ("int compute_alpha(", BODY.replace("+ 1", "+ one()") + "int compute_alpha("))
    found = port(OLD, patched, new)
    assert verdicts(found) == [Verdict.UPSTREAM, Verdict.CONFLICT, Verdict.OFFSET, Verdict.CONFLICT]
    assert "'}'" in found.hunks[1].evidence
    assert "2 times" in found.hunks[3].evidence


BODY = "int compute_patched(int value) {\n  return value + 1;\n}\n\n"


@pytest.mark.parametrize("path", ["a.c", "a.cpp", "a.h"])
def test_a_function_is_not_defined_twice(path: str) -> None:
    patched = replaced(OLD, ("int compute_gamma(", BODY + "int compute_gamma("))
    new = replaced(OLD, ("int compute_zeta(", BODY.replace("+ 1", "+ one()") + "int compute_zeta("))
    found = port(OLD, patched, new, path)
    assert verdicts(found) == [Verdict.CONFLICT]
    assert "compute_patched" in found.hunks[0].evidence
    assert "2 times" in found.hunks[0].evidence


def test_functions_that_differ_in_their_parameters_are_two_in_cpp_alone() -> None:
    patched = replaced(OLD, ("int compute_gamma(", BODY + "int compute_gamma("))
    new = replaced(OLD, ("int compute_zeta(", BODY.replace("int value", "long value") + "int compute_zeta("))
    assert verdicts(port(OLD, patched, new, "a.cpp")) == [Verdict.CLEAN]
    assert verdicts(port(OLD, patched, new, "a.c")) == [Verdict.CONFLICT]


def test_one_function_per_branch_of_an_if_is_one() -> None:
    both = "#ifdef FAST\n" + BODY + "#else\n" + BODY.replace("+ 1", "+ 2") + "#endif\n"
    patched = replaced(OLD, ("int compute_gamma(", both + "int compute_gamma("))
    assert verdicts(port(OLD, patched, "// top\n" + OLD)) == [Verdict.OFFSET]


MEMBERS = "".join(f"  MODE_{n} = {n},\n" for n in range(12))


@pytest.mark.parametrize(
    ("before", "old_line", "ours", "theirs", "what"),
    [
        (
            f"enum mode {{\n{MEMBERS}}};\n",
            "  MODE_3 = 3,\n",
            "  MODE_X = 20,\n",
            "  MODE_X = 30,\n",
            "enumerator `MODE_X`",
        ),
        (
            "struct state {\n" + MEMBERS.replace(" =", ";//").replace("  M", "  int M") + "};\n",
            "  int MODE_3;// 3,\n",
            "  int fresh; // mine\n",
            "  int fresh; // theirs\n",
            "member `fresh`",
        ),
        (
            "void f(int a) {\n  switch (a) {\n"
            + "".join(f"  case {n}: g({n}); break;\n" for n in range(12))
            + "  }\n}\n",
            "  case 3: g(3); break;\n",
            "  case 77: g(1); break;\n",
            "  case 77: h(1); break;\n",
            "`case 77`",
        ),
        (
            "void f(int a) {\n" + "".join(f"  int v{n} = g({n});\n" for n in range(12)) + "}\n",
            "  int v3 = g(3);\n",
            "  int fresh = g(99);\n",
            "  int fresh = h(99);\n",
            "variable `fresh`",
        ),
    ],
    ids=["enumerator", "member", "case", "variable"],
)  # fmt: skip
def test_nothing_is_defined_twice_in_a_block(before: str, old_line: str, ours: str, theirs: str, what: str) -> None:
    later = old_line.replace("3", "10")
    found = port(before, after(before, (old_line, ours)), after(before, (later, theirs)))
    assert verdicts(found) == [Verdict.CONFLICT]
    assert f"{what} would be there 2 times" in found.hunks[0].evidence


def test_a_call_has_no_argument_too_many() -> None:
    """Upstream took a parameter away from the function that the added line calls."""
    helper = "static int helper(int value, int flags) {\n  return value + flags;\n}\n\n"
    old = helper + OLD
    new = helper.replace(", int flags", "").replace("+ flags", "+ 1") + OLD
    patched = after(old, (line("gamma", 5), "  value += helper(value, 1);\n"))
    found = port(old, patched, new)
    assert verdicts(found) == [Verdict.CONFLICT]
    assert "`helper` at line 47 has 2 arguments, it takes 1" in found.hunks[0].evidence
    kept = port(old, patched, "// top\n" + old)
    assert verdicts(kept) == [Verdict.OFFSET]


def test_a_call_is_compared_with_the_other_calls() -> None:
    old = OLD.replace("step_beta_3(value, 3)", "shared(value, 3)").replace("step_zeta_3(value, 3)", "shared(value, 4)")
    patched = after(old, (line("gamma", 5), "  shared(value, 5);\n"))
    new = old.replace("shared(value, ", "shared(context, value, ")
    found = port(old, patched, new)
    assert verdicts(found) == [Verdict.CONFLICT]
    assert "it takes 3" in found.hunks[0].evidence
    varied = old.replace("shared(value, 4)", "shared(value, 4, 5)")
    assert verdicts(port(varied, after(varied, (line("gamma", 5), "  shared(value, 5);\n")), "// x\n" + varied)) == [
        Verdict.OFFSET
    ]


SCRIPT = "".join(f"def step_{n}(value):\n    begin(value, {n})\n    return finish(value, {n})\n\n\n" for n in range(12))


def test_python_is_compiled() -> None:
    """Upstream opens the same text and closes it earlier."""
    first, early, late = "    begin(value, 2)\n", "    begin(value, 3)\n", "    begin(value, 9)\n"
    patched = after(SCRIPT, (first, '    """\n'), (late, '    """\n'))
    new = after(SCRIPT, (first, '    """\n'), (early, '    """\n'))
    found = port(SCRIPT, patched, new, "a.py")
    assert verdicts(found) == [Verdict.UPSTREAM, Verdict.CONFLICT]
    assert "not valid Python: line" in found.hunks[1].evidence


def test_python_of_another_version_is_read_with_the_grammar() -> None:
    """No Python 3 compiles the old print statement, before the port or after it."""
    old = SCRIPT.replace("    begin(value, 5)\n", "    print 'five'\n    begin(value, 5)\n")
    more = "def added(value):\n    return 1\n\n\n"
    patched = replaced(old, ("def step_4(", more + "def step_4("))
    assert verdicts(port(old, patched, "# top\n" + old, "a.py")) == [Verdict.OFFSET]
    new = replaced(old, ("def step_8(", more.replace("1", "2") + "def step_8("))
    found = port(old, patched, new, "a.py")
    assert verdicts(found) == [Verdict.CONFLICT]
    assert "function `added` would be there 2 times" in found.hunks[0].evidence


LISTS = "".join(f"set(FILES_{n} first_{n}.c second_{n}.c)\nlist(APPEND ALL ${{FILES_{n}}})\n" for n in range(12))


@pytest.mark.parametrize("path", ["CMakeLists.txt", "cmake/some.cmake"])
def test_cmake_is_read(path: str) -> None:
    first, early, late = (f"list(APPEND ALL ${{FILES_{n}}})\n" for n in (1, 3, 9))
    patched = after(LISTS, (first, "if(PATCHED)\n"), (late, "endif(PATCHED)\n"))
    new = after(LISTS, (first, "if(PATCHED)\n"), (early, "endif()\n"))
    found = port(LISTS, patched, new, path)
    assert verdicts(found) == [Verdict.UPSTREAM, Verdict.CONFLICT]
    assert "does not parse as CMake" in found.hunks[1].evidence


#: A function in which no grammar without a preprocessor finds its way: the macros open and close blocks.
ODD = "int odd(int value) {\n  BEGIN_ALLOW(value)\n  FOR_ALL (item, list)\n    value += [item]; }\n  END_ALLOW\n}\n\n"


def test_code_that_the_grammar_could_not_read_before_is_not_judged_and_that_is_said(tmp_path: Path) -> None:
    old = ODD + OLD
    change_ = after(old, ("  BEGIN_ALLOW(value)\n", "  patched(value);\n"))
    ported = port_one(tmp_path, {"a.c": old.encode()}, {"a.c": change_.encode()}, {"a.c": ("// top\n" + old).encode()})
    assert ported.state is PatchState.PORTED
    (note,) = ported.notes
    assert note.startswith("a.c was not checked in full: the C grammar cannot read line")


def test_the_rest_of_such_a_file_is_judged() -> None:
    """What is broken is next to code that the grammar reads."""
    old = ODD + OLD
    patched = replaced(old, ("int compute_gamma(", BODY + "int compute_gamma("))
    new = replaced(old, ("int compute_zeta(", BODY.replace("+ 1", "+ one()") + "int compute_zeta("))
    found = port(old, patched, new)
    assert verdicts(found) == [Verdict.CONFLICT]
    assert found.unread == ""


def test_what_the_grammar_cannot_read_of_the_patch_itself_is_no_fault() -> None:
    """A macro of the patch is as odd in its own tree."""
    patched = replaced(OLD, ("int compute_gamma(", "FOR_ALL (item, list) [item];\n\nint compute_gamma("))
    found = port(OLD, patched, "// top\n" + OLD)
    assert verdicts(found) == [Verdict.OFFSET]


def test_a_file_of_no_known_language_is_only_text() -> None:
    patched = after(OLD, (line("gamma", 1), OPEN), (line("gamma", 10), CLOSE))
    new = after(OLD, (line("gamma", 1), OPEN), (line("gamma", 5), CLOSE))
    assert verdicts(port(OLD, patched, new, "a.txt")) == [Verdict.UPSTREAM, Verdict.OFFSET]


@pytest.mark.parametrize(
    "code",
    [
        "#ifdef A\n  if (value) {\n#else\n  if (!value) {\n#endif\n    first(value);\n  }\n",
        "  puts(\"}\"); // }\n  puts('{' + R\"x(}}})x\"); /* ( */ number(1'000'000);\n",
        "#define OPEN {\\\n  (\n",
        "#if 0\n  it's {{ not code\n#endif\n",
    ],
)
def test_brackets_that_do_not_count(code: str) -> None:
    patched = after(OLD, (line("gamma", 5), code))
    found = port(OLD, patched, after(OLD, (line("beta", 5), "  other();\n")), "a.cpp")
    assert verdicts(found) == [Verdict.OFFSET]


def test_export_macros_and_conditionals_are_read() -> None:
    """A block that begins in each branch of an `#if` and ends behind it does not make a file unreadable."""
    guard = "class TORCH_API Guard : public Base {\n public:\n  Guard();\n};\n"
    old = guard + "#ifdef A\nnamespace a {\n#else\nnamespace b {\n#endif\n" + OLD + "}\n"
    lines = Text(old.encode()).lines
    found = check("a.cpp", change(lines, []), change(lines, []))
    assert (found.faults, found.unread) == ((), "")
    patched = after(old, (line("gamma", 5), "  patched(value);\n"))
    ported = port(old, patched, "// top\n" + old, "a.cpp")
    assert (verdicts(ported), ported.unread) == ([Verdict.OFFSET], "")
