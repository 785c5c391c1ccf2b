from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from build.errors import DigestMismatchError, SourceError
from build.releases import Release
from build.sources import Proof, SourceKind, TreePurpose, acquire, upstream

from .helpers import allow_ext, helper_url
from .trees import FILES, git, leftovers, make_remote, release, write_tree


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made, _ = make_remote(tmp_path)
    monkeypatch.setenv("MULTIWORLD_UPSTREAM", f"file://{made}")
    return made


@pytest.fixture
def pinned(remote: Path) -> Release:
    return release(commit=git(remote, "rev-parse", "v2.6.0^{commit}"))


def test_commit_is_checked_and_only_what_is_needed_is_there(pinned: Release) -> None:
    tree = acquire(pinned)
    assert (tree.kind, tree.proof, tree.passed_over) == (SourceKind.GIT, Proof.COMMIT, ())
    assert (tree.repo / "torch/csrc/cuda/nccl.cpp").read_bytes() == FILES["torch/csrc/cuda/nccl.cpp"]
    assert not (tree.repo / "third_party").exists()
    assert not (tree.repo / "test").exists()


def test_blobs_outside_the_overlay_are_not_transferred(remote: Path, pinned: Release, tmp_path: Path) -> None:
    repo = tmp_path / "fetched"
    repo.mkdir()
    upstream._fetch(pinned, repo, TreePurpose.OVERLAY)
    missing = git(repo, "rev-list", "--objects", "--missing=print", "v2.6.0").splitlines()
    absent = {line[1:] for line in missing if line.startswith("?")}
    assert git(remote, "rev-parse", "v2.6.0:third_party/other/big.bin") in absent
    assert git(remote, "rev-parse", "v2.6.0:torch/csrc/cuda/nccl.cpp") not in absent


def test_moved_tag_names_both_commits_and_builds_nothing(remote: Path, cache: Path) -> None:
    found, pinned = git(remote, "rev-parse", "v2.6.0^{commit}"), "1" * 40
    with pytest.raises(DigestMismatchError) as caught:
        acquire(release(commit=pinned))
    assert f"pinned {pinned}" in str(caught.value)
    assert f"found  {found}" in str(caught.value)
    assert leftovers(cache) == []


def test_tag_moved_after_it_was_asked_for(remote: Path, pinned: Release, tmp_path: Path) -> None:
    """The transfer is checked as well, not only the answer before it."""
    work = tmp_path / "work"
    write_tree(work, {"torch/csrc/evil.cpp": b"evil\n"})
    git(work, "add", "-A")
    git(work, "commit", "-q", "-m", "moved")
    git(work, "push", "-q", str(remote), "+HEAD:refs/tags/v2.6.0")
    repo = tmp_path / "fetched"
    repo.mkdir()
    with pytest.raises(DigestMismatchError):
        upstream._fetch(pinned, repo, TreePurpose.OVERLAY)


def test_lightweight_tag(remote: Path, pinned: Release) -> None:
    git(remote, "tag", "-f", "v2.6.0", pinned.commit)
    assert acquire(pinned).identity == f"commit {pinned.commit}"


def test_no_origin_serves_and_each_says_why(cache: Path) -> None:
    with pytest.raises(SourceError) as caught:
        acquire(release())
    assert "upstream git: " in str(caught.value)
    assert "no-such-remote" in str(caught.value)
    assert "Debian source package: no Debian source package of this release is known" in str(caught.value)
    assert leftovers(cache) == []


@pytest.mark.usefixtures("remote")
def test_missing_tag_is_passed_over_with_its_name() -> None:
    with pytest.raises(SourceError, match=r"has no tag v9\.9\.9"):
        acquire(release(tag="v9.9.9"))


def test_host_that_never_answers_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "CONNECT_TIMEOUT", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("MULTIWORLD_UPSTREAM", f"git://127.0.0.1:{silent.getsockname()[1]}/pytorch.git")
        start = time.monotonic()
        with pytest.raises(SourceError, match="did not answer within 1 s"):
            acquire(release())
    assert time.monotonic() - start < 5


def test_transfer_cut_off_once_is_started_anew(
    remote: Path, pinned: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    allow_ext(monkeypatch)
    monkeypatch.setenv("MULTIWORLD_UPSTREAM", helper_url(tmp_path, remote, cut_transfers=1))
    tree = acquire(pinned)
    assert tree.kind is SourceKind.GIT
    assert "the transfer broke off and starts again" in capsys.readouterr().out


def test_transfer_cut_off_always_leaves_nothing(
    remote: Path, pinned: Release, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_ext(monkeypatch)
    monkeypatch.setenv("MULTIWORLD_UPSTREAM", helper_url(tmp_path, remote, cut_transfers=99))
    with pytest.raises(SourceError, match="not available from any origin"):
        acquire(pinned)
    assert leftovers(cache) == []


def test_users_hooks_are_not_run(
    remote: Path, pinned: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert remote
    hook = tmp_path / "hooks" / "post-checkout"
    hook.parent.mkdir()
    hook.write_text(f"#!/bin/sh\ntouch '{tmp_path / 'ran'}'\nexit 1\n")
    hook.chmod(0o755)
    (tmp_path / "gitconfig").write_text(f"[core]\n\thooksPath = {hook.parent}\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    assert acquire(pinned).kind is SourceKind.GIT
    assert not (tmp_path / "ran").exists()


@pytest.mark.usefixtures("remote")
def test_failure_names_the_git_command(tmp_path: Path) -> None:
    """Not its first argument: a transfer has settings before the command."""
    repo = tmp_path / "fetched"
    repo.mkdir()
    with pytest.raises(SourceError, match="git fetch failed"):
        upstream._fetch(release(tag="v9.9.9"), repo, TreePurpose.OVERLAY)


def test_full_build_gets_upstreams_own_clone_with_submodules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "protocol.file.allow")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "always")
    library = write_tree(tmp_path / "library", {"lib.h": b"int lib;\n"})
    git(library, "init", "-q", "-b", "main")
    git(library, "add", "-A")
    git(library, "commit", "-q", "-m", "library")
    make_remote(tmp_path)
    work = tmp_path / "work"
    git(work, "submodule", "add", "-q", f"file://{library}", "third_party/lib")
    git(work, "commit", "-q", "-m", "with a submodule")
    git(work, "tag", "-f", "-a", "v2.6.0", "-m", "again")
    monkeypatch.setenv("MULTIWORLD_UPSTREAM", f"file://{work}")
    commit = git(work, "rev-parse", "HEAD")
    (tmp_path / "gitconfig").write_text("[core]\n\tautocrlf = true\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    tree = acquire(release(commit=commit), need=TreePurpose.FULL)
    assert tree.base == commit
    # Exact to the byte in a submodule too, which has no settings of its own.
    assert (tree.repo / "third_party/lib/lib.h").read_bytes() == b"int lib;\n"
    assert (tree.repo / "test/test_nothing.py").is_file()


def test_second_call_asks_no_network(remote: Path, pinned: Release) -> None:
    first = acquire(pinned)
    remote.rename(remote.with_name("gone.git"))
    start = time.monotonic()
    assert acquire(pinned) == first
    assert time.monotonic() - start < 1
