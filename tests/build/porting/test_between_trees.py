"""Folders of patches that this project did not write: quilt, strip levels, line ends; and what is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

from build.errors import PatchError, SourceError, UsageError
from build.git import Git
from build.porting import Action
from build.porting.between_trees import Request, load_folder, port_folder
from build.porting.engine import PatchState
from build.porting.report import PortReport
from build.series.model import Verdict
from tests.build.series.repos import commit, make_patch, make_repo, numbered

OLD = numbered(40)
NEW = b"first\n" + numbered(40)


def plain(folder: Path, name: str, old: bytes, new: bytes, prefix: tuple[str, str]) -> bytes:
    """Output of `diff -u`, with names of any depth."""
    for side, data in zip(("1", "2"), (old, new), strict=True):
        (folder / side).write_bytes(data)
    done = subprocess.run(["diff", "-u", "1", "2"], cwd=folder, capture_output=True, check=False, timeout=60)
    body = done.stdout[done.stdout.index(b"@@") :]
    return f"--- {prefix[0]}{name}\t2020-01-01\n+++ {prefix[1]}{name}\t2020-01-02\n".encode() + body


@pytest.fixture
def repo(tmp_path: Path) -> Git:
    git = make_repo(tmp_path / "repo", {"src/a.c": OLD, "src/b.c": OLD, "dos.c": OLD.replace(b"\n", b"\r\n")})
    git.out("tag", "old")
    commit(git, {"src/a.c": NEW, "src/b.c": NEW, "dos.c": NEW.replace(b"\n", b"\r\n")}, "upstream")
    git.out("tag", "new")
    git.out("reset", "-q", "--hard", "old")
    (tmp_path / "patches").mkdir()
    return git


def request(repo: Git, action: Action = Action.START) -> Request:
    root = repo.folder.parent
    return Request(root / "patches", f"{repo.folder}@old", f"{repo.folder}@new", root / "out", action)


def put(repo: Git, name: str, data: bytes) -> None:
    (repo.folder.parent / "patches" / name).write_bytes(data)


def applies(repo: Git, out: Path) -> None:
    """The written series applies to the new tree, by git and by nothing of ours."""
    git = Git(repo.folder)
    git.out("checkout", "-q", "--detach", "new")
    for name in (line for line in (out / "series").read_text().splitlines() if not line.startswith("#")):
        git.out("apply", "--index", "--whitespace=nowarn", str(out / name))


@pytest.mark.parametrize(
    "prefix", [("a/", "b/"), ("", ""), ("x-1.0/", "x-1.0/"), ("build/x-1.0/", "build/x-1.0/"), ("a/b/c/", "a/b/c/")]
)
def test_any_strip_level_is_found(repo: Git, tmp_path: Path, prefix: tuple[str, str]) -> None:
    put(repo, "fix.patch", plain(tmp_path, "src/a.c", OLD, numbered(40, l20="twenty\n"), prefix))
    report = port_folder(request(repo))
    assert [item.verdict for item in report.verdicts] == [Verdict.OFFSET]
    applies(repo, tmp_path / "out")


def test_quilt_order_comments_and_options(repo: Git, tmp_path: Path) -> None:
    one, two = numbered(40, l20="one\n"), numbered(40, l20="two\n")
    put(
        repo, "z-first.patch", b"Description: first\nForwarded: no\n\n" + plain(tmp_path, "src/a.c", OLD, one, ("", ""))
    )
    put(repo, "a-second.diff", plain(tmp_path, "src/a.c", one, two, ("x/", "x/")))
    put(repo, "unlisted.patch", b"junk")
    put(repo, "series", b"# order\n\nz-first.patch -p0  # words\na-second.diff\n")
    report = port_folder(request(repo))
    assert [patch.name for patch in report.patches] == ["z-first.patch", "a-second.diff"]
    assert (tmp_path / "out" / "z-first.patch").read_bytes().startswith(b"Description: first\nForwarded: no\n\ndiff")
    applies(repo, tmp_path / "out")
    assert b"two" in (repo.folder / "src" / "a.c").read_bytes()


def test_a_patch_with_dos_line_ends_for_a_unix_file(repo: Git, tmp_path: Path) -> None:
    data = plain(tmp_path, "src/a.c", OLD, numbered(40, l20="twenty\n"), ("a/", "b/"))
    put(repo, "fix.patch", data.replace(b"\n", b"\r\n"))
    assert [item.verdict for item in port_folder(request(repo)).verdicts] == [Verdict.OFFSET]
    applies(repo, tmp_path / "out")
    assert b"\r" not in (repo.folder / "src" / "a.c").read_bytes()


def test_a_patch_for_a_file_with_dos_line_ends(repo: Git, tmp_path: Path) -> None:
    old, new = (data.replace(b"\n", b"\r\n") for data in (OLD, numbered(40, l20="twenty\n")))
    put(repo, "fix.patch", plain(tmp_path, "dos.c", old, new, ("a/", "b/")))
    assert [item.verdict for item in port_folder(request(repo)).verdicts] == [Verdict.OFFSET]
    applies(repo, tmp_path / "out")
    assert b"twenty\r\n" in (repo.folder / "dos.c").read_bytes()


def test_porting_to_the_same_tree_is_the_identity(repo: Git, tmp_path: Path) -> None:
    mail = make_patch(repo, {"src/b.c": numbered(40, l3="three\n")})
    rough = b"words\n\n" + plain(tmp_path, "src/a.c", OLD, numbered(40, l20="twenty\n"), ("p/", "p/")) + b"-- \n2.1\n"
    put(repo, "1.patch", mail)
    put(repo, "2.patch", rough)
    same = Request(tmp_path / "patches", f"{repo.folder}@old", f"{repo.folder}@old", tmp_path / "out")
    report = port_folder(same)
    assert {item.verdict for item in report.verdicts} == {Verdict.CLEAN}
    assert (tmp_path / "out" / "1.patch").read_bytes() == mail
    assert (tmp_path / "out" / "2.patch").read_bytes() == rough


def test_the_reports_say_the_same(repo: Git, tmp_path: Path) -> None:
    put(repo, "fix.patch", plain(tmp_path, "src/a.c", OLD, numbered(40, l20="twenty\n"), ("a/", "b/")))
    report = port_folder(request(repo))
    written = (tmp_path / "out" / "port.json").read_bytes()
    assert msgspec.json.decode(written, type=PortReport) == report
    assert "| `src/a.c` | 1 | 18 | offset +1 | offset |" in (tmp_path / "out" / "PORT.md").read_text()


def test_a_second_run_changes_nothing(repo: Git, tmp_path: Path) -> None:
    put(repo, "fix.patch", plain(tmp_path, "src/a.c", OLD, numbered(40, l20="twenty\n"), ("a/", "b/")))

    def content() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}

    port_folder(request(repo))
    first = content()
    port_folder(request(repo))
    assert content() == first


def test_what_is_upstream_is_not_written(repo: Git, tmp_path: Path) -> None:
    put(repo, "up.patch", plain(tmp_path, "src/a.c", OLD, NEW, ("a/", "b/")))
    report = port_folder(request(repo))
    assert [patch.state for patch in report.patches] == [PatchState.UNNEEDED]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["PORT.md", "port.json", "series"]


@pytest.mark.parametrize(
    "data",
    [
        b"no patch at all\n",
        b"--- a/src/a.c\n+++ b/src/a.c\n@@ -1,3 +1,3 @@\n line 1 of the file\n",
        b"--- a/src/a.c\n+++ b/../../outside\n@@ -1 +1 @@\n-line 1 of the file\n+x\n",
        b"--- a/src/a.c\n+++ b/src/a.c\n@@ -1,2 +1,9 @@\n-line 1 of the file\n+x\n line 2 of the file\n",
    ],
)
def test_bad_patches_are_refused_and_nothing_is_written(repo: Git, tmp_path: Path, data: bytes) -> None:
    put(repo, "bad.patch", data)
    with pytest.raises(PatchError, match=r"bad\.patch:\d"):
        port_folder(request(repo))
    assert not (tmp_path / "out").exists()


def test_bad_folders_and_trees(repo: Git, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no patches"):
        port_folder(request(repo))
    put(repo, "series", b"missing.patch\n")
    with pytest.raises(PatchError, match="cannot read"):
        load_folder(tmp_path / "patches", {})
    put(repo, "series", b"../../etc/passwd\n")
    with pytest.raises(PatchError, match="outside"):
        load_folder(tmp_path / "patches", {})
    put(repo, "series", b"x.patch -R\n")
    with pytest.raises(PatchError, match="cannot read"):
        load_folder(tmp_path / "patches", {})
    with pytest.raises(SourceError, match="neither"):
        port_folder(Request(tmp_path / "patches", str(tmp_path / "none"), str(repo.folder), tmp_path / "out"))


def test_a_folder_of_someone_else_is_not_replaced(repo: Git, tmp_path: Path) -> None:
    put(repo, "fix.patch", plain(tmp_path, "src/a.c", OLD, numbered(40, l20="twenty\n"), ("a/", "b/")))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_bytes(b"mine")
    with pytest.raises(UsageError, match="not a port's"):
        port_folder(request(repo))
    assert (tmp_path / "out" / "precious").read_bytes() == b"mine"


TWENTY = numbered(40, l20="twenty\n")


def tells(note: str, found: tuple[str, ...]) -> bool:
    return any(note in line for line in found)


@pytest.mark.parametrize(
    ("written", "meant", "note"),
    [
        (b"-1,6 +1,6 @@\n one\n-two\n+TWO\n three\n", b"\n\n\n", "lacks its last 3 lines, which are read as blank"),
        (b"-1,3 +1,3 @@\n one\n-two\n+TWO\n three", b"\n\n\n", "line 7 lacks its line end"),
        (b"-1,7 +1,7 @@\n one\n-two\n+TWO\n three\n\n\n\n \n", b"\n\n\n\n", ""),
    ],
    ids=["blank lines chopped", "last line end chopped", "blanks of blank lines chopped"],
)
def test_a_last_hunk_that_an_editor_stripped(tmp_path: Path, written: bytes, meant: bytes, note: str) -> None:
    """GNU patch, and so quilt, assumes blank lines there."""
    old = b"one\ntwo\nthree\n" + meant + b"end\n"
    git = make_repo(tmp_path / "repo", {"a.txt": old})
    git.out("tag", "old")
    commit(git, {"a.txt": b"first\n" + old}, "upstream")
    git.out("tag", "new")
    (tmp_path / "patches").mkdir()
    put(git, "fix.patch", b"--- a/a.txt\n+++ b/a.txt\n@@ " + written)
    report = port_folder(request(git))
    assert [item.verdict for item in report.verdicts] == [Verdict.OFFSET], report.verdicts
    assert tells(note, report.patches[0].notes) or not note
    applies(git, tmp_path / "out")
    assert (git.folder / "a.txt").read_bytes() == b"first\n" + old.replace(b"two", b"TWO")


def test_a_hunk_that_lacks_more_than_blanks_has_no_place(repo: Git, tmp_path: Path) -> None:
    """The lines that a cut patch lacks are not blank in the file: nothing is put in."""
    whole = plain(tmp_path, "src/a.c", OLD, TWENTY, ("a/", "b/"))
    put(repo, "cut.patch", b"".join(whole.splitlines(keepends=True)[:-1]))
    report = port_folder(request(repo))
    assert [item.verdict for item in report.verdicts] == [Verdict.CONFLICT]


def test_names_after_diff_git_that_are_others(repo: Git, tmp_path: Path) -> None:
    body = plain(tmp_path, "src/a.c", OLD, TWENTY, ("a/", "b/"))
    put(repo, "fix.patch", b"diff --git a/src/a.c.orig b/src/old.c\nindex 1234567..7654321 100644\n" + body)
    report = port_folder(request(repo))
    assert [(item.path, item.verdict) for item in report.verdicts] == [("src/a.c", Verdict.OFFSET)]
    assert tells("line 1 names other files than the --- and +++ below it, which are taken", report.patches[0].notes)
    applies(repo, tmp_path / "out")
    made = b"diff --git a/n.c b/other.c\nnew file mode 100644\n--- /dev/null\n+++ b/n.c\n@@ -0,0 +1 @@\n+n\n"
    put(repo, "fix.patch", made)
    with pytest.raises(PatchError, match="names after diff --git"):
        port_folder(request(repo))


def test_a_patch_that_nobody_can_read_is_one_row(repo: Git, tmp_path: Path) -> None:
    put(repo, "1.patch", plain(tmp_path, "src/a.c", OLD, TWENTY, ("a/", "b/")))
    put(
        repo,
        "2.patch",
        b"--- a/src/b.c\n+++ b/src/b.c\n@@ -1,2 +1,9 @@\n-line 1 of the file\n+x\n line 2 of the file\n",
    )
    put(repo, "3.patch", b"--- a/src/b.c\n+++ b/../../outside\n@@ -1 +1 @@\n-line 1 of the file\n+x\n")
    put(repo, "4.patch", plain(tmp_path, "src/b.c", OLD, TWENTY, ("a/", "b/")))
    put(repo, "series", b"1.patch\n2.patch\n3.patch\n4.patch\n1.patch -R\n")
    report = port_folder(request(repo))
    ported, unreadable = PatchState.PORTED, PatchState.UNREADABLE
    assert [patch.state for patch in report.patches] == [ported, unreadable, unreadable, ported, unreadable]
    said = [patch.notes[0] for patch in report.unreadable]
    assert said[0].startswith("2.patch:6: the patch ends inside the hunk of line 3"), said
    assert "leaves the tree" in said[1]
    assert said[2].startswith("series:5: ")
    written = (tmp_path / "out" / "PORT.md").read_text()
    assert "| `2.patch` | cannot be read |  |" in written
    assert said[0] in written
    assert (tmp_path / "out" / "series").read_text().splitlines()[-2:] == ["1.patch", "4.patch"]
    applies(repo, tmp_path / "out")
    assert not (tmp_path / "out.port").exists()


HEADERS = {
    "mail of a series": b"From 0123456789abcdef0123456789abcdef01234567 Mon Sep 17 00:00:00 2001\n"
    b"From: A U Thor <a@example.org>\nDate: Tue, 3 Mar 2020 10:00:00 +0100\nSubject: [PATCH 1/3] =?UTF-8?q?Gr=C3=BC?=\n"
    b" =?UTF-8?q?n?=\n\nWhy it is so.\n\n# not a comment\n---\n",
    "mail without a date": b"From 0123456789abcdef0123456789abcdef01234567 Mon Sep 17\nSubject: x\n\n---\n",
    "dpatch": b"#! /bin/sh /usr/share/dpatch/dpatch-run\n## 01_x.dpatch by A U Thor\n# DP: why\n\n# Closes: #123\n",
    "no blank line": b"Description: x\nForwarded: no\n",
    "not UTF-8": b"Description: Gr\xfcn  \n\n\n# last\n\n\n",
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_the_header_is_kept_byte_for_byte(repo: Git, tmp_path: Path, header: bytes) -> None:
    body = plain(tmp_path, "src/a.c", OLD, TWENTY, ("a/", "b/"))
    put(repo, "fix.patch", header + b"Index: src/a.c\n=======\n" + body)
    assert port_folder(request(repo)).complete
    assert (tmp_path / "out" / "fix.patch").read_bytes().partition(b"diff --git")[0] == header
    applies(repo, tmp_path / "out")


def test_a_diffstat_is_kept_while_it_is_true(repo: Git, tmp_path: Path) -> None:
    """Of two changes upstream has one."""
    one, two = (plain(tmp_path, f"src/{name}.c", OLD, TWENTY, ("a/", "b/")) for name in "ab")
    stat = b"---\n src/a.c |    2 +-\n src/b.c |    2 +-\n 2 files changed, 2 insertions(+), 2 deletions(-)\n\n"
    put(repo, "fix.patch", b"Subject: x\n" + stat + one + two)
    port_folder(request(repo))
    assert (tmp_path / "out" / "fix.patch").read_bytes().startswith(b"Subject: x\n" + stat + b"diff --git")
    repo.out("checkout", "-q", "new")
    commit(repo, {"src/b.c": NEW.replace(b"line 20 of the file\n", b"twenty\n")}, "more")
    repo.out("tag", "-f", "new")
    port_folder(request(repo))
    true = b"---\n src/a.c | 2 +-\n 1 file changed, 1 insertion(+), 1 deletion(-)\n\n"
    written = (tmp_path / "out" / "fix.patch").read_bytes()
    assert written.startswith(b"Subject: x\n" + true + b"diff --git")
    assert written.count(b"diff --git") == 1
    applies(repo, tmp_path / "out")
