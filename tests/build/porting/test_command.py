"""`regenerate-patch` as people call it: exit statuses, messages, the way through a conflict."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from build.cli import main
from build.git import Git
from build.paths import REPO
from tests.build.series.repos import commit, make_patch, make_repo, numbered


@pytest.fixture
def repo(tmp_path: Path) -> Git:
    git = make_repo(tmp_path / "repo", {"a.c": numbered(40)})
    git.out("tag", "old")
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches" / "fix.patch").write_bytes(make_patch(git, {"a.c": numbered(40, l20="mine\n")}))
    commit(git, {"a.c": b"first\n" + numbered(40)}, "upstream")
    git.out("tag", "new")
    commit(git, {"a.c": numbered(40, l20="theirs\n")}, "conflict")
    git.out("tag", "clash")
    return git


def call(repo: Git, to: str, *more: str) -> int:
    root = repo.folder.parent
    trees = ["--from-tree", f"{repo.folder}@old", "--to-tree", f"{repo.folder}@{to}"]
    return main(["regenerate-patch", "--patches", str(root / "patches"), *trees, "--out", str(root / "out"), *more])


def test_all_ported_is_0(repo: Git, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(repo, "new") == 0
    assert "1 hunk: 1 offset" in capsys.readouterr().out


def test_a_conflict_is_20_and_can_be_gone_through(repo: Git, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(repo, "clash") == 20
    checkout = repo.folder.parent / "out.port" / "checkout"
    said = capsys.readouterr().err
    assert f"edit a.c in {checkout}" in said
    assert call(repo, "clash", "--continue") == 2
    assert "a.c:20" in capsys.readouterr().err
    (checkout / "a.c").write_bytes(numbered(40, l20="both\n"))
    assert call(repo, "clash", "--continue") == 0
    assert b"+both\n" in (repo.folder.parent / "out" / "fix.patch").read_bytes()


def test_a_conflict_can_be_given_up(repo: Git) -> None:
    assert call(repo, "clash") == 20
    assert call(repo, "clash", "--abort") == 0
    assert sorted(path.name for path in repo.folder.parent.iterdir()) == ["out", "patches", "repo"]
    assert call(repo, "clash", "--abort") == 2


def test_errors_have_their_own_statuses_and_no_traceback(repo: Git, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(repo, "v9") == 6
    (repo.folder.parent / "patches" / "bad.patch").write_bytes(b"no patch\n")
    assert call(repo, "new") == 8
    assert main(["regenerate-patch"]) == 2
    assert main(["regenerate-patch", "--patches", "x"]) == 2
    assert main(["regenerate-patch", "2.6.0", "--continue", "--abort"]) == 2
    assert main(["regenerate-patch", "2.6.0", "--drop"]) == 2
    assert main(["regenerate-patch", "2.6.0", "--series", "none"]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert "bad.patch:1" in said


def test_help_imports_nothing_that_takes_long() -> None:
    code = "import sys\nfrom build.cli import main\nmain(['regenerate-patch', '--help'])\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True, timeout=60
    )
    assert "--from-tree" in done.stdout
    heavy = {"pip", "build.pipeline", "build.porting.engine"}
    assert not heavy & set(done.stdout.split())
