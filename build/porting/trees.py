"""The old and the new tree of a port: a git repository, `PATH@REV`, or a plain folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from build.errors import SourceError
from build.git import SUBMODULE, Entry, Git, init, repository, split_revision

#: Number of files read at once.
BATCH = 256


@dataclass(frozen=True, slots=True)
class FileState:
    """A file's mode (octal, as git writes it) and content; the content of a submodule is its commit id."""

    mode: str
    data: bytes


@dataclass(frozen=True)
class Tree:
    """The tree of a commit in a repository that is only read; `label` is its name in messages."""

    git: Git
    commit: str
    label: str

    @cached_property
    def entries(self) -> dict[str, Entry]:
        return self.git.files(self.commit)

    @cached_property
    def _read(self) -> dict[str, FileState]:
        return {}

    def read(self, path: str) -> FileState | None:
        """Return a file, which is read once; None if the tree does not have it."""
        if path not in self._read and (entry := self.entries.get(path)) is not None:
            submodule = entry.mode == SUBMODULE
            data = entry.blob.encode() if submodule else self.git.out("cat-file", "blob", entry.blob)
            self._read[path] = FileState(entry.mode, data)
        return self._read.get(path)

    def preload(self, paths: Iterable[str]) -> None:
        """Read several files at once; files that the tree lacks are left out."""
        if self.whole:
            self.keep(self.read_many(path for path in paths if path in self.entries))

    def keep(self, files: Mapping[str, bytes]) -> None:
        """Keep files that were read, for whoever reads them next."""
        for path, data in files.items():
            self._read.setdefault(path, FileState(self.entries[path].mode, data))

    def read_many(self, paths: Iterable[str]) -> dict[str, bytes]:
        """Return the content of several files in one call; files missing from a partial clone are left out."""
        names = [path for path in paths if self.entries[path].mode != SUBMODULE]
        wanted = [self.entries[path] for path in names if path not in self._read]
        contents = self.git.blobs([entry.blob for entry in wanted]) if wanted else ()
        read = {entry.path: data for entry, data in zip(wanted, contents, strict=True)}
        found = {path: read[path] if path in read else self._read[path].data for path in names}
        return {path: data for path, data in found.items() if data is not None}

    @cached_property
    def whole(self) -> bool:
        """Return whether the repository has every file; a partial clone would have to fetch them."""
        return self.git.call("config", "--get-regexp", r"^remote\..*\.promisor$").returncode != 0

    def gone_since(self, path: str) -> str:
        """Return when a path disappeared, in words; empty if the repository's history is too short."""
        form = "--format=%h of %cs, %s"
        done = self.git.call("log", "-1", "--no-renames", "--diff-filter=D", form, self.commit, "--", path)
        text = done.stdout.decode("utf-8", "replace").strip()
        return f", since {text}" if done.returncode == 0 and text else ""


@dataclass(slots=True)
class Layer:
    """A tree with files changed on top of it, without a work tree."""

    tree: Tree
    changed: dict[str, FileState | None] = field(default_factory=dict)

    def with_(self, files: Mapping[str, FileState | None]) -> Layer:
        return Layer(self.tree, {**self.changed, **files})

    def get(self, path: str) -> FileState | None:
        return self.changed[path] if path in self.changed else self.tree.read(path)

    def has(self, path: str) -> bool:
        return self.changed[path] is not None if path in self.changed else path in self.tree.entries


def open_tree(spec: str, workplace: Path) -> Tree:
    """Open a git repository (its HEAD), `PATH@REV`, or a plain folder, which is imported to a repository `workplace`.

    Raises:
        SourceError: the folder or the revision does not exist.
    """
    path, revision = split_revision(spec)
    if not path.is_dir():
        remedy = "give a checkout, PATH@REV, or an unpacked source tree"
        raise SourceError(f"{spec} is neither a git repository nor a folder", remedy=remedy)
    git = repository(path.resolve())
    if git is not None:
        commit = git.resolve(revision or "HEAD")
        return Tree(git, commit, f"{path.name}@{commit[:12] if revision in {None, 'HEAD'} else revision}")
    if revision is not None:
        raise SourceError(f"{path} is not a git repository, so it has no revision {revision!r}")
    return _import(path.resolve(), workplace)


def _import(folder: Path, workplace: Path) -> Tree:
    """Make a repository of a plain folder's files; the folder is only read."""
    workplace.mkdir(parents=True)
    git = init(workplace, bare=True)
    env = {"GIT_DIR": str(workplace), "GIT_WORK_TREE": str(folder)}
    # One pack instead of a file for each blob. It is temporary, so it need not be small.
    inside = Git(folder, config=("core.bigFileThreshold=1", "core.compression=0"))
    inside.out("add", "--all", "--force", ".", env=env)
    commit = git.commit(inside.line("write-tree", env=env), f"{folder.name}, imported".encode())
    return Tree(git, commit, folder.name)
