"""Headers of a submodule, at the commit that the release's tree names: the official wheels have none of them."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from build.console import step
from build.errors import EnvironmentUnfitError, SourceError
from build.git import SUBMODULE, SYMLINK, Git, Settings, init
from build.paths import cache
from build.releases import Release
from build.seals import built
from build.sources import upstream
from build.sources.importer import check_inside

_MODULES = ".gitmodules"
#: Seconds for one transfer; a snapshot of the largest, onnx, is 10 MB.
_TIMEOUT = 600.0


def _remote(folder: Path, url: str) -> Git:
    folder.mkdir()
    init(folder)
    git = Git(folder, settings=Settings.REMOTE)
    git.out("remote", "add", "origin", url)
    return git


def _pinned(release: Release, module: str, scratch: Path) -> tuple[str, str]:
    """Return the address of a submodule and its commit; of PyTorch's tree, only what that takes is fetched."""
    upstream.check_commit(release, upstream.remote_commit(release), upstream.url())
    git = _remote(scratch / "release", upstream.url())
    tag = f"refs/tags/{release.tag}:refs/tags/{release.tag}"
    git.out("fetch", "--depth=1", "--no-tags", "--filter=tree:0", "origin", tag, timeout=_TIMEOUT)
    upstream.check_commit(release, git.resolve(release.tag), upstream.url())
    entry = git.files(release.tag, module).get(module)
    if entry is None or entry.mode != SUBMODULE:
        raise SourceError(f"{module} is no submodule of {release.tag}")
    # Where the release's tree says that the submodule is.
    asked = ("config", "--blob", f"{release.tag}:{_MODULES}", "--null", "--get-regexp", r"^submodule\..*\.(path|url)$")
    entries = dict(item.split("\n", 1) for item in git.out(*asked).decode().split("\0")[:-1])
    names = [key[: -len(".path")] for key, value in entries.items() if key.endswith(".path") and value == module]
    name = names[0] if names else ""
    if not entries.get(f"{name}.url"):
        raise SourceError(f"{_MODULES} of {release.tag} does not say where {module} is")
    return entries[f"{name}.url"], entry.blob


def _fill(release: Release, folder: str, part: Path) -> None:
    module, inner = "/".join(folder.split("/")[:2]), "/".join(folder.split("/")[2:])
    with tempfile.TemporaryDirectory(prefix="submodule-") as name:
        scratch = Path(name)
        url, commit = _pinned(release, module, scratch)
        step(f"fetching {module} at {commit[:12]}, which {release.tag} names, from {url}")
        git = _remote(scratch / "module", url)
        git.out("fetch", "--depth=1", "--no-tags", "origin", commit, timeout=_TIMEOUT)
        # Write the files below the folder `inner` of a commit into `part`, links left out.
        prefix = f"{inner}/" if inner else ""
        files = git.files(commit, *([inner] if inner else []))
        plain = [item for item in files.values() if item.mode not in (SUBMODULE, SYMLINK)]
        for item, data in zip(plain, git.blobs([item.blob for item in plain]), strict=True):
            check_inside(item.path)
            target = part / item.path.removeprefix(prefix)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data or b"")
    if not any(part.iterdir()):
        raise SourceError(f"{module} has no folder {inner} at {commit}")


def headers(release: Release, folder: str) -> Path:
    """Return the headers of a submodule of PyTorch, fetched once.

    Args:
        folder: where they lie in PyTorch's tree, e.g. `third_party/fmt/include`.

    Raises:
        EnvironmentUnfitError: upstream cannot be reached.
        DigestMismatchError: upstream's tag is not the pinned commit.
        SourceError: the submodule cannot be fetched, or the tree has no such submodule.
    """
    final = cache("headers") / f"{folder.replace('/', '-')}-{release.commit[:16]}"
    try:
        return built(final, f"the headers of {folder}", lambda part: _fill(release, folder, part))
    except subprocess.TimeoutExpired:
        raise EnvironmentUnfitError(f"the transfer of {folder} took more than {_TIMEOUT:.0f} s") from None
