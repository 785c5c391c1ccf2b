"""Upstream git: the commit at the release's tag, with only the files that are needed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from build.console import note, step
from build.errors import DigestMismatchError, EnvironmentUnfitError, SourceError
from build.git import SUBMODULE, Git, Settings
from build.releases import Release
from build.seals import built
from build.sources.importer import SourceFiles, cache_path, cached_tree, new_repository, wanted
from build.sources.readers import repository
from build.sources.tree import TreePurpose

UPSTREAM = "https://github.com/pytorch/pytorch.git"

#: Seconds the remote has to answer what its tag is; then the network counts as unreachable.
CONNECT_TIMEOUT = 20.0


def url() -> str:
    """Return upstream's address; `MULTIWORLD_UPSTREAM` names a mirror."""
    return os.environ.get("MULTIWORLD_UPSTREAM") or UPSTREAM


def remote_commit(release: Release) -> str:
    """Return the commit that the release's tag has upstream now.

    Raises:
        EnvironmentUnfitError: upstream cannot be reached.
        SourceError: it does not have the tag.
    """
    names = [f"refs/tags/{release.tag}", f"refs/tags/{release.tag}^{{}}"]
    try:
        done = Git(Path.cwd(), settings=Settings.REMOTE).call("ls-remote", url(), *names, timeout=CONNECT_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise EnvironmentUnfitError(f"{url()} did not answer within {CONNECT_TIMEOUT:.0f} s") from None
    if done.returncode:
        raise EnvironmentUnfitError(f"{url()} cannot be reached", cause=done.tail)
    rows = [row.split() for row in done.stdout.decode().splitlines()]
    if not rows:
        raise SourceError(f"{url()} has no tag {release.tag}")
    # An annotated tag is listed twice; the peeled line, which is the commit, comes last.
    return sorted(rows, key=lambda row: len(row[1]))[-1][0]


def check_commit(release: Release, found: str, where: str) -> None:
    """Compare a commit with the pinned one.

    Raises:
        DigestMismatchError: they differ; both are named.
    """
    if found != release.commit:
        raise DigestMismatchError(
            f"{where}: {release.tag} is not the pinned commit\npinned {release.commit}\nfound  {found}",
            cause="the tag was moved, or the repository is not PyTorch's",
            remedy="nothing was built; compare with `torch.version.git_version` of the official wheel",
        )


def _fetch(release: Release, repo: Path, need: TreePurpose) -> None:
    """Fetch the tag into the new repository `repo`, and of its files those that are needed."""
    new_repository(repo)
    git = Git(repo, settings=Settings.REMOTE)
    git.out("remote", "add", "origin", url())
    tag = f"refs/tags/{release.tag}:refs/tags/{release.tag}"
    partial = ["--filter=blob:none"] if need is TreePurpose.OVERLAY else []
    git.transfer("fetch", "--progress", "--depth=1", "--no-tags", *partial, "origin", tag, timeout=3600)
    check_commit(release, git.resolve(release.tag), url())
    if need is TreePurpose.OVERLAY:
        # Fetch the content of the wanted files, as git itself fetches missing ones, but with progress.
        files = git.files(release.tag).values()
        ids = {item.blob for item in files if item.mode != SUBMODULE and wanted(item.path, need)}
        options = ["--progress", "--no-tags", "--no-write-fetch-head", "--recurse-submodules=no", "--filter=blob:none"]
        asked = "".join(f"{blob}\n" for blob in sorted(ids)).encode()
        # No negotiation: the remote need not know which commits are here.
        plain = Git(git.folder, settings=Settings.REMOTE, config=("fetch.negotiationAlgorithm=noop",))
        plain.transfer("fetch", *options, "--stdin", "origin", stdin=asked, timeout=3600)
        return
    git.transfer("checkout", "--progress", "--detach", release.tag, timeout=3600)
    modules = ["submodule", "update", "--progress", "--init", "--recursive", "--depth=1", "--jobs=4"]
    git.transfer(*modules, timeout=7200)


def _fetch_with_retry(release: Release, repo: Path, need: TreePurpose) -> None:
    """Fetch, and once more from the start after a broken transfer: git cannot resume one."""
    check_commit(release, remote_commit(release), url())
    what = "only the files an overlay needs" if need is TreePurpose.OVERLAY else "with its submodules"
    step(f"fetching PyTorch {release.tag} from {url()}: one commit, {what}")
    try:
        _fetch(release, repo, need)
    except DigestMismatchError:
        raise
    except SourceError as error:
        note(f"the transfer broke off and starts again: {error.cause.splitlines()[-1] if error.cause else error}")
        shutil.rmtree(repo)
        repo.mkdir()
        _fetch(release, repo, need)


def path(release: Release, need: TreePurpose) -> Path:
    return cache_path(release, f"git {release.commit}", need)


def fetch(release: Release, need: TreePurpose) -> Path:
    """Return a repository with the release's source from upstream git.

    Raises:
        EnvironmentUnfitError: upstream cannot be reached.
        DigestMismatchError: the tag is another commit than the pinned one.
        SourceError: the tag does not exist, or the transfer broke off twice.
    """

    def entries(repo: Path) -> SourceFiles:
        _fetch_with_retry(release, repo, need)
        yield from repository(repo, release.commit, need)

    if need is TreePurpose.FULL:  # which needs the submodules: the clone itself
        what = f"the clone of PyTorch {release.version}"
        return built(path(release, need), what, lambda part: _fetch_with_retry(release, part, need))
    return cached_tree(release, f"git {release.commit}", need, entries)
