"""Words of a report: true line numbers, one line for a file that is gone, no alarm without a cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from build.cli import main
from build.git import Git
from build.porting.engine import port_series
from build.porting.placement import fit
from build.series.model import Verdict
from build.series.patchfile import parse
from tests.build.series.repos import commit, make_patch, make_repo, numbered

from .code import port, replaced, source
from .trees import old_and_new

OLD = source()
GAMMA = "  step_gamma_5(value, 5); // part 5 of gamma\n"
FIX = "  check_patched(value);\n  also_report_patched(value, 17);\n"


def test_line_numbers_are_those_of_the_file() -> None:
    """The function moved: its lines are compared alone, and they do not begin with line 1."""
    order = ("alpha", "beta", "delta", "epsilon", "zeta", "gamma")
    new = replaced(source(*order), (GAMMA, GAMMA + FIX))
    found = port(OLD, replaced(OLD, (GAMMA, GAMMA + FIX)), new)
    (hunk,) = found.hunks
    line = new[: new.index(FIX)].count("\n") + 1
    assert hunk.verdict is Verdict.UPSTREAM
    assert f"lines {line} to {line + 1}" in hunk.evidence


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"\tx;\n", b"x;\n", "re-indented: 1 tab less"),
        (b"  x;\n", b"      x;\n", "re-indented: 4 blanks deeper"),
        (b"x;\n", b"\t  x;\n", "re-indented: 1 tab and 2 blanks deeper"),
        (b"x;\n", b"x;\n", ""),
    ],
)
def test_indentation_is_counted_in_tabs_and_blanks(old: bytes, new: bytes, words: str) -> None:
    assert fit([old], [(old, new)])[1] == words


def test_a_part_that_is_only_to_be_removed_is_not_called_added() -> None:
    old = replaced(OLD, (GAMMA, GAMMA + "  obsolete_part(value);\n"))
    patched = replaced(OLD, (GAMMA, GAMMA + FIX))
    found = port(old, patched, replaced(old, (GAMMA, GAMMA + FIX)))
    assert "2 of 2 added lines" not in found.hunks[0].evidence


@pytest.fixture
def repo(tmp_path: Path) -> Git:
    git = make_repo(tmp_path / "repo", {"gone.c": numbered(60), "b.c": numbered(20)})
    (tmp_path / "patches").mkdir()
    change = numbered(60, l5="a\n", l30="b\n", l55="c\n")
    (tmp_path / "patches" / "fix.patch").write_bytes(make_patch(git, {"gone.c": change, "b.c": numbered(20, l9="x\n")}))
    commit(git, {"gone.c": None}, "upstream")
    return git


def test_a_file_that_is_gone_is_one_line(repo: Git, capsys: pytest.CaptureFixture[str]) -> None:
    root = repo.folder.parent
    trees = ["--from-tree", f"{repo.folder}@base", "--to-tree", f"{repo.folder}@main"]
    assert main(["regenerate-patch", "--patches", str(root / "patches"), *trees, "--out", str(root / "out")]) == 20
    shown = capsys.readouterr()
    assert "fix.patch: gone.c hunks 1-3: the new tree has no such file, since" in shown.err
    assert shown.err.count("no such file") == 1
    assert shown.out.count("no such file") == 1
    report = (root / "out" / "PORT.md").read_text()
    assert "| `gone.c` | 1-3 | - | **file gone** | human |" in report
    assert (root / "out" / "port.json").read_text().count('"file gone"') == 3


MAIL = b"From %s Mon Sep 17 00:00:00 2001\nFrom: A <a@example.org>\nSubject: [PATCH] x\n\nWords.\n---\n"
STAT = b" a.txt | 2 +-\n 1 file changed, %d insertion(+), 1 deletion(-)\n\n"


@pytest.mark.parametrize(
    ("form", "noted"),
    [
        ("whole", False),
        ("cut off", True),
        ("edited", False),
        ("two mails", False),
        ("two mails without ids", False),
        ("git log", False),
    ],
)
def test_only_a_patch_that_may_be_cut_off_is_called_so(form: str, noted: bool, tmp_path: Path) -> None:
    git, old, new = old_and_new(tmp_path, {"a.txt": numbered(30)}, {"k": b"k\n"})
    first = make_patch(git, {"a.txt": numbered(30, l5="five\n")})
    second = make_patch(git, {"a.txt": numbered(30, l25="more\n")})
    one, two = (data[data.index(b"diff --git") :] for data in (first, second))
    mail, bare = MAIL % (b"0" * 40), MAIL.split(b"\n", 1)[1]
    log = b"commit 1234567890\nAuthor: A <a@example.org>\n\n    x\n\n"
    data = {
        "whole": mail + STAT % 1 + one,
        "cut off": mail + STAT % 2 + one,
        "edited": mail + STAT % 0 + one,
        "two mails": mail + STAT % 3 + one + mail + STAT % 1 + two,
        "two mails without ids": bare + STAT % 3 + one + bare + two,
        "git log": log + STAT % 1 + one + log + two,
    }[form]
    notes = port_series([parse(data, "p.patch")], old, new)[0].notes
    assert any("cut off" in note for note in notes) is noted
