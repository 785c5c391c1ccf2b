"""The folder in which a full build compiles. It is kept: a failed build goes on where it ended.

git brings the sources in it up to date file by file, so that a corrected patch recompiles only what it touches.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from build import leases, paths, seals
from build.console import step
from build.errors import SourceError
from build.full.project import Project, Sources
from build.git import SUBMODULE, Entry, Git
from build.series.apply import AppliedTree, apply_series
from build.series.show import show_verdicts


@dataclass(frozen=True, slots=True)
class Workspace:
    """Folders of one project, version and Python; `folder` is locked while it is used."""

    folder: Path

    @property
    def tree(self) -> Path:
        """The patched sources, with the build's own folder `build` in them."""
        return self.folder / "tree"

    @property
    def environment(self) -> Path:
        return self.folder / "environment"

    @property
    def wheels(self) -> Path:
        """Where the build puts its wheel, before the repair."""
        return self.folder / "wheels"


def of(project: Project) -> Workspace:
    return Workspace(paths.cache("full") / f"{project.name}-{project.version}-cp{project.python.replace('.', '')}")


def applied(project: Project, sources: Sources) -> AppliedTree:
    """Apply the project's patches in a checkout of its own, which is only read."""
    checkout = paths.cache("applied") / f"{project.name}-{project.version}-full"
    with paths.locked(checkout, f"the checkout of {project.name} {project.version}"):
        leases.take(checkout)  # the workspace names its repository
        step(f"applying {len(project.patches)} patches")
        made = apply_series(sources.repo, sources.base, project.patches, checkout)
        show_verdicts(made.verdicts, f"{project.version}: hunks")
    return made


def update(place: Workspace, sources: Sources, patched: AppliedTree) -> None:
    """Bring the sources of a workspace up to date.

    What is unchanged keeps its time, so that ninja does not compile it again.

    Raises:
        SourceError: a submodule is not checked out in the source.
    """
    record = place.folder / "submodules.json"
    known = (seals.read_record(record, dict[str, str]) or {}) if place.tree.is_dir() else {}
    place.tree.mkdir(exist_ok=True)
    # `git rev-parse HEAD` in the tree names the patched commit: builds write it into the version.
    (place.tree / ".git").write_bytes(b"gitdir: " + os.fsencode(Git(patched.checkout).git_dir()) + b"\n")
    git = Git(place.tree, index=place.folder / "index")
    (place.folder / "index.lock").unlink(missing_ok=True)  # of a killed run: the folder is ours
    wanted = {path: item for path, item in git.files(patched.head).items() if item.mode == SUBMODULE}
    if known != (commits := {path: item.blob for path, item in wanted.items()}):
        record.unlink(missing_ok=True)  # until all is done: a killed run copies everything again
    for path in known.keys() - wanted.keys():  # before the checkout: a folder of files may take the place of one
        paths.clear(place.tree / path)
    git.out("read-tree", "-u", "--reset", patched.head)
    for path, entry in wanted.items():
        if known.get(path) != entry.blob:
            _put_submodule(sources.repo / path, place.tree / path, entry)
    if known != commits:
        seals.write_record(record, commits)


def _put_submodule(origin: Path, target: Path, entry: Entry) -> None:
    """Copy a submodule with those in it, without their repositories; SourceError unless it is at its commit."""
    found = Git(origin).call("rev-parse", "HEAD", "--show-prefix") if origin.is_dir() else None
    here, _, prefix = (found.stdout.decode() if found else "").partition("\n")
    if prefix.strip() or here != entry.blob:
        what = f"the submodule {entry.path} is not checked out at {entry.blob[:12]}"
        remedy = "run `git submodule update --init --recursive` in the source, or let upstream's be cloned"
        raise SourceError(what, remedy=remedy)
    paths.clear(target)
    shutil.copytree(origin, target, symlinks=True, ignore=shutil.ignore_patterns(".git"))


def variables(tree: Path) -> Mapping[str, str]:
    """Return what keeps the folder's name out of the results: debug information and `__FILE__`."""
    option = f"-ffile-prefix-map={tree}=."
    return {name: " ".join(filter(None, (os.environ.get(name, ""), option))) for name in ("CFLAGS", "CXXFLAGS")}
