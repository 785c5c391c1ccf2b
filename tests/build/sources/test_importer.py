from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from build.errors import SourceError
from build.sources import SourceKind, acquire
from build.sources.importer import check_inside

from .trees import FILES, LINK, git, leftovers, link, make_remote, make_tarball, release, snapshot, write_tree


def test_same_files_same_commit_from_every_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote, commit = make_remote(tmp_path)
    folder = write_tree(tmp_path / "plain")
    trees = [
        acquire(release(), folder),
        acquire(release(), make_tarball(tmp_path / "t.tar.xz")),
        acquire(release(), Path(f"{remote}@v2.6.0")),
        acquire(release(), tmp_path / "work"),
    ]
    monkeypatch.setenv("MULTIWORLD_CACHE", str(tmp_path / "other-cache"))
    monkeypatch.setenv("MULTIWORLD_UPSTREAM", f"file://{remote}")
    trees.append(acquire(release(commit=commit)))
    assert len({tree.base for tree in trees}) == 1
    assert [tree.kind for tree in trees] == [
        SourceKind.FOLDER,
        SourceKind.TARBALL,
        SourceKind.CHECKOUT,
        SourceKind.CHECKOUT,
        SourceKind.GIT,
    ]


@pytest.mark.parametrize("autocrlf", ["true", "input", "false"])
def test_work_tree_is_exact_whatever_the_users_git_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autocrlf: str
) -> None:
    config = tmp_path / "gitconfig"
    config.write_text(f"[core]\n\tautocrlf = {autocrlf}\n\tattributesFile = {tmp_path / 'attributes'}\n")
    (tmp_path / "attributes").write_text("* text eol=crlf\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    tree = acquire(release(), write_tree(tmp_path / "plain"))
    wanted = {name for name in FILES if name.startswith(("torch/", "aten/", "c10/")) or "/" not in name} - {
        ".gitattributes"
    }
    found = {str(path.relative_to(tree.repo)) for path in tree.repo.rglob("*") if path.is_file()}
    assert {name for name in found if not name.startswith(".git/")} == wanted | {LINK[0]}
    assert all((tree.repo / name).read_bytes() == FILES[name] for name in wanted)
    assert (tree.repo / LINK[0]).readlink() == Path(LINK[1])
    assert (tree.repo / "torch/tool.sh").stat().st_mode & 0o100
    assert git(tree.repo, "status", "--porcelain") == ""
    assert git(tree.repo, "rev-parse", "v2.6.0") == tree.base == git(tree.repo, "rev-parse", "HEAD")


@pytest.mark.parametrize("source", ["remote.git@v2.6.0", "plain"])
def test_git_above_us_keeps_its_own_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """A hook of git, from which a build may be started, has these variables of the repository that it is for."""
    make_remote(tmp_path)
    write_tree(tmp_path / "plain")
    users = write_tree(tmp_path / "users", {"own.txt": b"own\n"})
    git(users, "init", "-q", "-b", "main")
    git(users, "add", "-A")
    git(users, "commit", "-q", "-m", "own")
    before = snapshot(users)
    for name, value in (("GIT_DIR", ".git"), ("GIT_INDEX_FILE", ".git/index"), ("GIT_WORK_TREE", ".")):
        monkeypatch.setenv(name, str(users / value))
    try:
        tree = acquire(release(), tmp_path / source)
    finally:
        assert snapshot(users) == before
    assert (tree.repo / "torch/tool.sh").is_file()


#: A git whose import ends in the middle of its input, as it does on a full disk.
_FULL = """#!/bin/sh
case " $* " in *" fast-import "*)
    head -c 100 > /dev/null
    echo "fatal: write error: No space left on device" >&2
    exit 128;;
esac
exec {git} "$@"
"""


def test_full_disk_is_said_in_gits_words(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "git").write_text(_FULL.format(git=shutil.which("git")))
    (tools / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    # More than a pipe holds, so that the writer meets its end, and many files, so that some are still buffered then.
    files = {f"torch/csrc/{n}.cpp": b"int f();\n" * 20 for n in range(2000)}
    with pytest.raises(SourceError, match="git fast-import failed") as caught:
        acquire(release(), write_tree(tmp_path / "plain", files))
    assert "No space left on device" in caught.value.cause
    assert leftovers(cache) == []


OUTSIDE = {
    "parent": tarfile.TarInfo("pytorch-2.6.0/torch/../../evil"),
    "absolute": tarfile.TarInfo("/etc/evil"),
    "git": tarfile.TarInfo("pytorch-2.6.0/torch/.git/hooks/pre-commit"),
    "git, other case": tarfile.TarInfo("pytorch-2.6.0/.GIT/config"),
    "link out": link("pytorch-2.6.0/torch/csrc/out", "../../../../etc/passwd"),
    "absolute link": link("pytorch-2.6.0/torch/out", "/etc/passwd"),
    "hard link out": link("pytorch-2.6.0/torch/out", "../../etc/passwd", tarfile.LNKTYPE),
    "in a part not wanted": tarfile.TarInfo("pytorch-2.6.0/docs/../../evil"),
    "fifo": link("pytorch-2.6.0/torch/fifo", "", tarfile.FIFOTYPE),
}


@pytest.mark.parametrize("member", OUTSIDE.values(), ids=OUTSIDE)
def test_archive_that_reaches_outside_is_refused(tmp_path: Path, cache: Path, member: tarfile.TarInfo) -> None:
    tarball = make_tarball(tmp_path / "t.tar.xz", extra=(member,))
    with pytest.raises(SourceError, match=r"outside|not a file"):
        acquire(release(), tarball)
    assert leftovers(cache) == []


def test_link_that_stays_inside_is_taken(tmp_path: Path) -> None:
    tarball = make_tarball(tmp_path / "t.tar.xz", extra=(link("pytorch-2.6.0/torch/up", "../aten/src"),))
    assert (acquire(release(), tarball).repo / "torch/up").readlink() == Path("../aten/src")


@pytest.mark.parametrize("keep", [0, 40, 400])
def test_tarball_cut_off_leaves_nothing(tmp_path: Path, cache: Path, keep: int) -> None:
    whole = make_tarball(tmp_path / "whole.tar.xz").read_bytes()
    cut = tmp_path / "cut.tar.xz"
    cut.write_bytes(whole[:keep])
    with pytest.raises(SourceError):
        acquire(release(), cut)
    assert leftovers(cache) == []


def test_something_else_is_no_pytorch(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(SourceError, match="no torch/csrc"):
        acquire(release(), write_tree(tmp_path / "other", {"README": b"", "torch/x.py": b""}))
    assert leftovers(cache) == []


@given(st.lists(st.sampled_from(["a", "b.c", "..", ".git", ".GIT", "x y"]), min_size=1, max_size=5), st.booleans())
def test_only_plain_paths_pass(parts: list[str], absolute: bool) -> None:
    path = ("/" if absolute else "") + "/".join(parts)
    bad = absolute or ".." in parts or any(part.lower() == ".git" for part in parts)
    if bad:
        with pytest.raises(SourceError):
            check_inside(path)
    else:
        check_inside(path)


@given(st.integers(0, 3), st.lists(st.sampled_from(["a", ".."]), min_size=1, max_size=8))
def test_link_may_climb_as_far_as_it_is_deep(depth: int, target: list[str]) -> None:
    path, level, outside = "d/" * depth + "link", depth, False
    for part in target:
        level += -1 if part == ".." else 1
        outside = outside or level < 0
    if outside:
        with pytest.raises(SourceError):
            check_inside(path, "/".join(target).encode())
    else:
        check_inside(path, "/".join(target).encode())
