"""Run git so that its results depend on the repository alone, not on whose machine it is."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from build.errors import SourceError
from build.process import Completed, run

#: No user or system configuration: formats, hooks, signing and line ends are the same everywhere.
_ISOLATED = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "LC_ALL": "C",
    "TZ": "UTC",
}
#: For a git that fails where it should not.
REMEDY = "if the repository is damaged: one in the cache can be removed and is made anew, `git fsck` tells about yours"
_SETTINGS = (
    "core.autocrlf=false",
    "core.safecrlf=false",
    "core.hooksPath=/dev/null",
    "core.fsync=none",  # repositories made here can be made again; waiting for the disk helps nobody
    "gc.auto=0",
    "core.fsmonitor=false",
    "safe.directory=*",  # whoever owns it: the user has named the tree, and no program that it names is run for it
)


def verb(arguments: Sequence[str | Path]) -> str:
    """Return the git command among its arguments: settings (`-c KEY=VALUE`) may come before it."""
    words = iter(arguments)
    for word in words:
        if word != "-c":
            return str(word)
        next(words, None)
    return ""


@dataclass(frozen=True, slots=True)
class Git:
    """git in one repository, with or without a work tree.

    Attributes:
        folder: the work tree or the bare repository.
        index: a private index file, None for the repository's own.
    """

    folder: Path
    index: Path | None = None

    def call(self, *args: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None) -> Completed:
        """Run a git command and return its result whatever its exit status."""
        variables = {**_ISOLATED, **(env or {})}
        if self.index is not None:
            variables["GIT_INDEX_FILE"] = str(self.index)
        settings = [part for item in _SETTINGS for part in ("-c", item)]
        command = ["git", *settings, "-C", str(self.folder), *args]
        return run(command, stdin=stdin, env=variables)

    def out(self, *args: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None) -> bytes:
        """Run a git command and return its output.

        Raises:
            SourceError: git failed; its own words are the cause.
        """
        done = self.call(*args, stdin=stdin, env=env)
        if done.returncode:
            raise SourceError(f"git {verb(args)} failed in {self.folder}", cause=done.tail, remedy=REMEDY)
        return done.stdout

    def line(self, *args: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None) -> str:
        """Run a git command and return its output as one stripped line."""
        return os.fsdecode(self.out(*args, stdin=stdin, env=env)).strip()

    def git_dir(self) -> Path:
        """Return the repository's `.git` folder."""
        return Path(self.line("rev-parse", "--absolute-git-dir"))

    def resolve(self, revision: str, kind: str = "commit") -> str:
        """Return the object id of `revision`.

        Raises:
            SourceError: there is no such revision here.
        """
        done = self.call("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{{kind}}}")
        if done.returncode:
            raise SourceError(
                f"{self.folder} has no revision {revision!r}",
                cause="the name is wrong, or the clone is too shallow to have it",
                remedy="give a branch, tag or commit that this repository has",
            )
        return done.stdout.decode().strip()


def require_repository(folder: Path) -> Git:
    """Return git in `folder`.

    Raises:
        SourceError: it is no git repository.
    """
    git = Git(folder)
    if not folder.is_dir() or git.call("rev-parse", "--git-dir").returncode:
        raise SourceError(
            f"{folder} is no git repository",
            cause="a plain folder, or a path that does not exist",
            remedy="give a git checkout or a bare repository",
        )
    return git


@dataclass(frozen=True, slots=True)
class Entry:
    """One path in a git tree."""

    path: str
    mode: str
    blob: str


def entries(git: Git, tree: str) -> dict[str, Entry]:
    """Return the files of a tree by path."""
    found = {}
    for record in git.out("ls-tree", "-r", "-z", "--full-tree", tree).split(b"\0")[:-1]:
        meta, _, name = record.partition(b"\t")
        path = os.fsdecode(name)
        mode, _, blob = meta.decode().split(" ", 2)
        found[path] = Entry(path, mode, blob)
    return found
