from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from build.errors import DigestMismatchError, UsageError
from build.releases import DebianSource
from build.sources import Proof, SourceKind, acquire

from .trees import FILES, git, make_remote, make_tarball, release, snapshot, write_tree

NCCL = "torch/csrc/cuda/nccl.cpp"


def blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def test_commit_of_the_release_proves_a_checkout(tmp_path: Path) -> None:
    remote, commit = make_remote(tmp_path)
    tree = acquire(release(commit=commit), remote)
    assert (tree.proof, tree.kind, tree.identity) == (Proof.COMMIT, SourceKind.CHECKOUT, f"commit {commit}")


def test_dirty_checkout_gives_its_commit_and_is_not_touched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_remote(tmp_path)
    work = tmp_path / "work"
    (work / NCCL).write_bytes(b"changed\n")
    os.utime(work / "setup.py", (1, 1))  # a stale index entry, which a careless `git status` would refresh
    before = snapshot(work)
    tree = acquire(release(), work)
    assert snapshot(work) == before
    assert (tree.repo / NCCL).read_bytes() == FILES[NCCL]
    assert "1 uncommitted changes are not used" in capsys.readouterr().out


def test_folder_inside_a_repository_is_a_folder(tmp_path: Path) -> None:
    make_remote(tmp_path)
    tree = acquire(release(), write_tree(tmp_path / "work" / "unpacked"))
    assert tree.kind is SourceKind.FOLDER


def test_folder_is_read_again_after_a_change(tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "plain")
    first = acquire(release(), folder)
    assert acquire(release(), folder).repo == first.repo
    (folder / NCCL).write_bytes(b"int changed;\n")
    second = acquire(release(), folder)
    assert (second.repo / NCCL).read_bytes() == b"int changed;\n"
    assert (first.repo / NCCL).read_bytes() == FILES[NCCL]


def test_path_with_an_at_sign_is_a_path(tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "a@b")
    assert acquire(release(), folder).kind is SourceKind.FOLDER


@pytest.mark.parametrize("source", ["nowhere", "nowhere@v1", "plain@v1", "remote.git@v9.9.9"])
def test_what_is_not_there_is_a_usage_error(tmp_path: Path, source: str) -> None:
    make_remote(tmp_path)
    write_tree(tmp_path / "plain")
    with pytest.raises(UsageError):
        acquire(release(), tmp_path / source)


def test_unknown_origin_is_accepted_by_its_blobs(tmp_path: Path) -> None:
    tree = acquire(release(blobs={NCCL: blob(FILES[NCCL])}), write_tree(tmp_path / "plain"))
    assert tree.proof is Proof.BLOBS
    assert "1 files by blob id" in tree.identity


@pytest.mark.parametrize("found", [b"int nccl() { return 2; }\r\n", None])
def test_other_blobs_are_refused_with_both_values(tmp_path: Path, found: bytes | None) -> None:
    files = {**FILES, NCCL: found or b""}
    if found is None:
        del files[NCCL]
    pinned = blob(FILES[NCCL])
    with pytest.raises(DigestMismatchError) as caught:
        acquire(release(blobs={NCCL: pinned}), write_tree(tmp_path / "plain", files))
    assert f"pinned {pinned}" in str(caught.value)
    assert (f"found  {blob(found)}" if found is not None else "(missing)") in str(caught.value)


def test_tarball_with_the_pinned_digest_is_the_release(tmp_path: Path) -> None:
    tarball = make_tarball(tmp_path / "t.tar.xz")
    digest = hashlib.sha256(tarball.read_bytes()).hexdigest()
    debian = DebianSource(version="2.6.0+dfsg", suite="trixie", orig_sha256=digest)
    assert acquire(release(debian=debian), tarball).proof is Proof.DIGEST


def test_nothing_pinned_says_so(tmp_path: Path) -> None:
    assert acquire(release(), write_tree(tmp_path / "plain")).proof is Proof.NONE


def test_second_call_is_fast(tmp_path: Path) -> None:
    remote, _ = make_remote(tmp_path)
    acquire(release(), remote)
    start = time.monotonic()
    acquire(release(), remote)
    assert time.monotonic() - start < 1


def test_partial_clone_without_its_remote_is_refused(tmp_path: Path) -> None:
    remote, _ = make_remote(tmp_path)
    git(tmp_path, "clone", "-q", "--bare", "--filter=blob:none", f"file://{remote}", str(tmp_path / "partial.git"))
    remote.rename(tmp_path / "gone.git")
    with pytest.raises(Exception, match="lacks the content of"):
        acquire(release(), tmp_path / "partial.git")


def test_checkout_that_another_user_owns_gives_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_remote(tmp_path)
    (tmp_path / "work" / NCCL).write_bytes(b"changed\n")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    tree = acquire(release(), tmp_path / "work")
    assert tree.kind is SourceKind.CHECKOUT
    assert (tree.repo / NCCL).read_bytes() == FILES[NCCL]
    assert "without uncommitted changes" in capsys.readouterr().out
