"""The trees a port goes between, where git has more to say about them than their content."""

from __future__ import annotations

from pathlib import Path

import pytest

from build.errors import SourceError
from build.porting.trees import open_tree
from tests.build.series.repos import make_repo


def test_checkout_that_another_user_owns_gives_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not the files that lie there."""
    git = make_repo(tmp_path / "r", {"a": b"committed\n"})
    (git.folder / "a").write_bytes(b"uncommitted\n")
    (git.folder / "b").write_bytes(b"untracked\n")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    tree = open_tree(str(git.folder), tmp_path / "work")
    state = tree.read("a")
    assert state is not None
    assert state.data == b"committed\n"
    assert tree.read("b") is None


def test_checkout_that_git_refuses_is_no_plain_folder(tmp_path: Path) -> None:
    git = make_repo(tmp_path / "r", {"a": b"1\n"})
    (git.folder / ".git" / "HEAD").unlink()
    with pytest.raises(SourceError, match="git cannot read") as caught:
        open_tree(str(git.folder), tmp_path / "work")
    assert "not a git repository" in caught.value.cause


def test_folder_has_the_same_commit_whatever_hash_the_user_prefers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "a").write_bytes(b"1\n")
    monkeypatch.setenv("GIT_DEFAULT_HASH", "sha256")
    assert len(open_tree(str(tmp_path / "plain"), tmp_path / "work").commit) == 40
