"""A real apt against a real little archive, signed with a key of its own."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from build.errors import DigestMismatchError, SourceError
from build.releases import DebianSource, Release
from build.sources import Proof, SourceKind, acquire, debian

from .trees import leftovers, make_tarball, release

NEEDED = ("apt-get", "gpg", "gpgv", "gpgconf")
pytestmark = pytest.mark.skipif(any(shutil.which(tool) is None for tool in NEEDED), reason=f"needs {', '.join(NEEDED)}")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def listed(path: Path, name: str) -> str:
    return f" {sha256(path)} {path.stat().st_size} {name}\n"


class Archive:
    """A Debian archive with one source package, signed."""

    def __init__(self, folder: Path, version: str = "2.6.0+dfsg") -> None:
        self.top, self.keys = folder / "archive", folder / "gnupg"
        self.keys.mkdir(mode=0o700)
        self.keyring = folder / "keyring.gpg"
        self.gpg("--quick-gen-key", "archive@example.org", "ed25519", "sign", "never")
        self.keyring.write_bytes(self.gpg("--export"))
        pool = self.top / "pool/main/p/pytorch"
        pool.mkdir(parents=True)
        self.orig = make_tarball(pool / f"pytorch_{version}.orig.tar.xz")
        self.dsc = pool / f"pytorch_{version}-7.dsc"
        self.dsc.write_text(f"Format: 3.0 (quilt)\nSource: pytorch\nVersion: {version}-7\n")
        self.index(version)

    def gpg(self, *arguments: str) -> bytes:
        command: list[str | Path] = ["gpg", "--homedir", self.keys, "--batch", "--yes", "--passphrase", "", *arguments]
        return subprocess.run(command, check=True, capture_output=True, timeout=60).stdout

    def index(self, version: str) -> None:
        """Write Sources and a signed InRelease for what is in the pool."""
        sources = self.top / "dists/trixie/main/source/Sources"
        sources.parent.mkdir(parents=True, exist_ok=True)
        files = listed(self.dsc, self.dsc.name) + listed(self.orig, self.orig.name)
        sources.write_text(
            f"Package: pytorch\nBinary: python3-torch\nVersion: {version}-7\nArchitecture: any\n"
            f"Format: 3.0 (quilt)\nDirectory: pool/main/p/pytorch\nChecksums-Sha256:\n{files}\n"
        )
        plain = self.top / "Release"
        plain.write_text(
            "Origin: Debian\nSuite: trixie\nCodename: trixie\nArchitectures: amd64\nComponents: main\n"
            "Date: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n" + listed(sources, "main/source/Sources")
        )
        self.gpg("--clearsign", "-o", str(self.top / "dists/trixie/InRelease"), str(plain))


@pytest.fixture
def folder() -> Iterator[Callable[[], Path]]:
    """Give folders for archives, and end the agents that gpg leaves behind, one for each.

    Not below `tmp_path`, which may be long and have spaces: the path of an agent's socket has room for some hundred
    characters, apt makes one file name of all of a mirror's address, and its lists separate their fields by spaces.
    """
    with contextlib.ExitStack() as at_end:

        def new() -> Path:
            made = tempfile.TemporaryDirectory(prefix="debian-", dir="/tmp", ignore_cleanup_errors=True)
            top = Path(at_end.enter_context(made))
            kill = ["gpgconf", "--homedir", str(top / "gnupg"), "--kill", "all"]
            at_end.callback(subprocess.run, kill, check=True, timeout=60)
            return top

        yield new


@pytest.fixture
def archive(folder: Callable[[], Path], monkeypatch: pytest.MonkeyPatch) -> Archive:
    made = Archive(folder())
    use(monkeypatch, made)
    return made


def use(monkeypatch: pytest.MonkeyPatch, archive: Archive) -> None:
    """Let this machine's mirror be the archive: which one apt is configured with is tested on its own."""
    monkeypatch.setattr(debian, "mirrors", lambda: (archive.top.as_uri(),))
    monkeypatch.setattr(debian, "KEYRING", archive.keyring)


def package(orig_sha256: str) -> Release:
    return release(debian=DebianSource(version="2.6.0+dfsg", suite="trixie", orig_sha256=orig_sha256))


def test_orig_tarball_is_fetched_checked_and_taken(archive: Archive, cache: Path) -> None:
    tree = acquire(package(sha256(archive.orig)))
    assert (tree.kind, tree.proof) == (SourceKind.DEBIAN, Proof.DIGEST)
    assert (tree.repo / "torch/csrc/cuda/nccl.h").is_file()
    (reason,) = tree.passed_over
    assert reason.startswith("upstream git: ")
    assert "no-such-remote" in reason
    assert len(leftovers(cache)) == 1  # the tree: apt's private state is gone


def test_other_digest_is_refused_with_both_values(archive: Archive, cache: Path) -> None:
    with pytest.raises(DigestMismatchError) as caught:
        acquire(package("0" * 64))
    assert f"pinned {'0' * 64}" in str(caught.value)
    assert f"found  {sha256(archive.orig)}" in str(caught.value)
    assert leftovers(cache) == []


def test_suite_that_moved_on_is_said(folder: Callable[[], Path], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Archive(folder(), "2.14.1+dfsg"))
    with pytest.raises(SourceError, match=r"has pytorch_2\.14\.1\+dfsg.* now, not pytorch_2\.6\.0\+dfsg"):
        acquire(package("0" * 64))
    assert leftovers(cache) == []


def test_archive_signed_by_another_key_is_refused(
    archive: Archive, folder: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debian, "KEYRING", Archive(folder()).keyring)
    with pytest.raises(SourceError, match="InRelease' is not signed"):
        acquire(package(sha256(archive.orig)))


def test_second_mirror_serves_when_the_first_does_not(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrors = ((archive.top.parent / "no-archive").as_uri(), archive.top.as_uri())
    monkeypatch.setattr(debian, "mirrors", lambda: mirrors)
    assert acquire(package(sha256(archive.orig))).kind is SourceKind.DEBIAN


def test_mirror_comes_from_the_machines_apt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    try:
        found = debian.mirrors()
    except debian.NotDebianError as error:
        pytest.skip(f"not a Debian machine: {error}")
    assert found
    assert all(mirror.partition(":")[0] in ("http", "https", "file", "copy", "mirror+file") for mirror in found)


def test_machine_without_apt_passes_it_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    git = shutil.which("git")
    assert git
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/git").symlink_to(git)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(SourceError, match="Debian source package: this machine has no apt-get"):
        acquire(package("0" * 64))
