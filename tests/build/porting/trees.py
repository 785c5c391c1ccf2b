"""Two trees in one little repository, and patches between them."""

from __future__ import annotations

from pathlib import Path

from build.git import Git
from build.porting.engine import PatchPort, port_series
from build.porting.trees import Tree
from build.series.model import PatchFile
from build.series.patchfile import parse
from tests.build.series.repos import commit, make_patch, make_repo

Files = dict[str, "bytes | None"]


def series_on(git: Git, steps: list[Files]) -> list[bytes]:
    """Canonical patches, each on top of the one before; HEAD goes back to where it was."""
    from build.series.commits import export_commit

    before = git.line("rev-parse", "HEAD")
    made = [export_commit(git, commit(git, files, f"change {n}")) for n, files in enumerate(steps, 1)]
    git.out("reset", "-q", "--hard", before)
    return made


def parsed(made: list[bytes]) -> list[PatchFile]:
    return [parse(data, f"{n:04d}-change.patch") for n, data in enumerate(made, 1)]


def old_and_new(folder: Path, old: Files, new: Files) -> tuple[Git, Tree, Tree]:
    """A repository with tags `old` and `new`; HEAD is at `old`."""
    git = make_repo(folder, old)
    git.out("tag", "old")
    commit(git, new, "upstream")
    git.out("tag", "new")
    git.out("reset", "-q", "--hard", "old")
    return git, Tree(git, git.resolve("old"), "old"), Tree(git, git.resolve("new"), "new")


def port_one(folder: Path, old: Files, change: Files, new: Files) -> PatchPort:
    git, before, after = old_and_new(folder, old, new)
    return port_series(parsed([make_patch(git, change)]), before, after)[0]
