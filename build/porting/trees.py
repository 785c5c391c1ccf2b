"""The trees a port goes between: a git repository, `PATH@REV`, or a plain folder."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from build.errors import SourceError
from build.git import Entry, Git, entries
from build.series.commits import DATE, EMAIL, NAME

_IDENT = {
    f"GIT_{role}_{key}": value
    for role in ("AUTHOR", "COMMITTER")
    for key, value in (("NAME", NAME), ("EMAIL", EMAIL), ("DATE", DATE))
}


@dataclass(frozen=True, slots=True)
class FileState:
    """A file's mode (octal, as git writes it) and content; the content of a submodule is its commit id."""

    mode: str
    data: bytes


class Tree:
    """A tree in a repository that is only read.

    Attributes:
        git: the repository.
        commit: the commit.
        label: what people call it.
    """

    def __init__(self, git: Git, commit: str, label: str) -> None:
        self.git = git
        self.commit = commit
        self.label = label

    @cached_property
    def entries(self) -> dict[str, Entry]:
        """All files by path."""
        return entries(self.git, self.commit)

    def read(self, path: str) -> FileState | None:
        """Return a file, None if there is none of that name."""
        entry = self.entries.get(path)
        if entry is None:
            return None
        if entry.mode == "160000":
            return FileState(entry.mode, entry.blob.encode())
        return FileState(entry.mode, self.git.out("cat-file", "blob", entry.blob))

    def read_many(self, paths: Iterable[str]) -> dict[str, bytes]:
        """Return the content of several files in one go; those an incomplete clone lacks are left out."""
        wanted = [self.entries[path] for path in paths if self.entries[path].mode != "160000"]
        raw = self.git.out("cat-file", "--batch", "--buffer", stdin="".join(f"{e.blob}\n" for e in wanted).encode())
        found, at = {}, 0
        for entry in wanted:
            end = raw.index(b"\n", at)
            header = raw[at:end].split()
            at = end + 1
            if len(header) == 3:
                size = int(header[2])
                found[entry.path] = raw[at : at + size]
                at += size + 1
        return found


@dataclass(slots=True)
class Layer:
    """A tree with files changed on top of it, without a work tree."""

    tree: Tree
    changed: dict[str, FileState | None] = field(default_factory=dict)

    def get(self, path: str) -> FileState | None:
        """Return a file as it is now."""
        return self.changed[path] if path in self.changed else self.tree.read(path)

    def has(self, path: str) -> bool:
        """Tell whether there is a file of that name now."""
        return self.changed[path] is not None if path in self.changed else path in self.tree.entries

    def put(self, path: str, state: FileState | None) -> None:
        """Write a file, or remove it (None)."""
        self.changed[path] = state


def open_tree(spec: str, workplace: Path) -> Tree:
    """Open what a user names.

    Args:
        spec: a git repository (its HEAD), `PATH@REV`, or a plain folder.
        workplace: where a plain folder's files are imported to, as a repository of its own.

    Returns:
        The tree.

    Raises:
        SourceError: no such folder, no such revision.
    """
    path, revision = Path(spec), "HEAD"
    if not path.exists() and "@" in spec:
        path, revision = Path(spec.rpartition("@")[0]), spec.rpartition("@")[2]
    if not path.is_dir():
        raise SourceError(
            f"{spec} is neither a git repository nor a folder",
            cause="the path does not exist" if not path.exists() else "it is a file",
            remedy="give a checkout, PATH@REV, or an unpacked source tree",
        )
    git = Git(path.resolve())
    if _is_repository(git):
        commit = git.resolve(revision)
        return Tree(git, commit, f"{path.name}@{commit[:12] if revision == 'HEAD' else revision}")
    if revision != "HEAD":
        raise SourceError(f"{path} is no git repository, so it has no revision {revision!r}")
    return _import(path.resolve(), workplace)


def _is_repository(git: Git) -> bool:
    """Whether the folder itself is a repository, not merely inside one.

    Raises:
        SourceError: it is one that git refuses; read as a plain folder, it would give what no commit has.
    """
    done = git.call("rev-parse", "--is-bare-repository", "--show-prefix")
    if done.returncode:
        if os.path.lexists(git.folder / ".git"):
            raise SourceError(
                f"{git.folder} is a git repository that git cannot read",
                cause=done.tail,
                remedy="repair it, or give a copy without its .git",
            )
        return False
    words = os.fsdecode(done.stdout).split("\n")
    return words[0] == "true" or words[1] == ""


def _import(folder: Path, workplace: Path) -> Tree:
    """Make a repository of a plain folder's files; the folder is only read."""
    workplace.mkdir(parents=True)
    git = Git(workplace)
    git.out("init", "--quiet", "--bare", "--template=", "--object-format=sha1")
    env = {"GIT_DIR": str(workplace), "GIT_WORK_TREE": str(folder)}
    inside = Git(folder)
    # One pack instead of a file for each blob; and it is thrown away: it need neither be small nor outlive a power cut.
    fast = ("-c", "core.bigFileThreshold=1", "-c", "core.compression=0", "-c", "core.fsync=none")
    inside.out(*fast, "add", "--all", "--force", ".", env=env)
    tree = inside.line("write-tree", env=env)
    commit = git.line("commit-tree", tree, "-m", f"{folder.name}, imported", env=_IDENT)
    return Tree(git, commit, folder.name)
