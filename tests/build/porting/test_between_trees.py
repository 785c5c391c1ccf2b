"""Folders of patches that this project did not write: quilt, strip levels, line ends; and what is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from build.errors import PatchError, SourceError, UsageError
from build.git import Git
from build.porting.between_trees import Request, port_folder
from build.porting.engine import PatchState
from build.porting.quilt import load_folder
from build.porting.report import from_json
from build.series.verdicts import Verdict
from tests.build.series.repos import commit, make_patch, make_repo, numbered

OLD = numbered(40)
NEW = b"first\n" + numbered(40)


def plain(folder: Path, name: str, old: bytes, new: bytes, prefix: tuple[str, str]) -> bytes:
    """What `diff -u` writes, with names of any depth."""
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


def request(repo: Git, action: str = "start") -> Request:
    root = repo.folder.parent
    return Request(root / "patches", f"{repo.folder}@old", f"{repo.folder}@new", root / "out", action)


def put(repo: Git, name: str, data: bytes) -> None:
    (repo.folder.parent / "patches" / name).write_bytes(data)


def applies(repo: Git, out: Path) -> None:
    """The written series applies to the new tree, by git and by nothing of ours."""
    git = Git(repo.folder)
    git.out("checkout", "-q", "--detach", "new")
    for name in (out / "series").read_text().split():
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
    assert from_json((tmp_path / "out" / "port.json").read_bytes()) == report
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
