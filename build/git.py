"""git: the only module that runs it and knows its formats. Results depend on the repository, not on the machine."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import IO

from build.console import log, progress
from build.errors import SourceError
from build.process import Completed, run, run_shown, running, start

#: Seconds after which a command is ended.
TIMEOUT = 1800.0
SYMLINK, SUBMODULE = "120000", "160000"
#: For an unexpected failure of git.
_REMEDY = "if the repository is in the cache, remove it and run again; check one of your own with `git fsck`"
_NO_USER = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
_ENVIRONMENT = {
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "LC_ALL": "C",
    "TZ": "UTC",
}
#: Given on the command line, they also hold in submodules and against the repository's own settings.
_EXACT = (
    "core.autocrlf=false",
    "core.safecrlf=false",
    "core.eol=lf",
    "core.attributesFile=/dev/null",
    "core.hooksPath=/dev/null",
    "core.fsync=none",  # repositories made here can be made again: do not wait for the disk
    "gc.auto=0",
    "core.fsmonitor=false",
    "safe.directory=*",  # of any owner: the user has named the tree, and programs that its settings name are not run
)
#: A transfer slower than this for a minute is ended (git-config(1), http.lowSpeedLimit).
_SLOW = ("http.lowSpeedLimit=1000", "http.lowSpeedTime=60")
#: A line of progress: what is done, how far it is, and how much is received how fast.
_PROGRESS = re.compile(r"(?:remote: )?(\w+ (?:objects|deltas|files)): +\d+% \((\d+)/(\d+)\)(, .*)?")
#: Committer line of imported sources. It is part of the ids of cached trees: a change needs a new importer.FORMAT.
_IMPORTER = b"multiworld <multiworld@localhost> 0 +0000"


class Settings(Enum):
    """Owner of the settings that a command follows."""

    NONE = "none: formats, hooks, signing and line ends are the same everywhere"
    REMOTE = "the user's for how a remote is reached (proxy, certificates, mirrors), else none"
    USER = "the user's only, including those for trusted owners"


@dataclass(frozen=True, slots=True)
class Author:
    """The author of a commit, with the date."""

    name: str
    email: str
    date: str


#: Committer of every commit, and author of those whose patch has no author: fixed, so that ids are reproducible.
PROJECT = Author("multiworld", "patches@multiworld.invalid", "2000-01-01T00:00:00+0000")


@dataclass(frozen=True, slots=True)
class Entry:
    """One path in a git tree; `blob` is the commit of a submodule."""

    path: str
    mode: str
    blob: str


@dataclass(frozen=True, slots=True)
class Git:
    """git in one repository, with or without a work tree.

    Attributes:
        folder: the work tree or the bare repository.
        index: a private index file, None for the repository's own.
        settings: see `Settings`.
        config: further settings, `KEY=VALUE`.
    """

    folder: Path
    index: Path | None = None
    settings: Settings = Settings.NONE
    config: tuple[str, ...] = ()

    def call(
        self, *args: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None, timeout: float = TIMEOUT
    ) -> Completed:
        """Run a git command and return its result, with any exit status.

        Raises:
            EnvironmentUnfitError: git is not installed.
            subprocess.TimeoutExpired: `timeout` (seconds) passed.
        """
        return run(self._command(args), env={**self._variables(), **(env or {})}, stdin=stdin, timeout=timeout)

    def out(
        self, *args: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None, timeout: float = TIMEOUT
    ) -> bytes:
        """Run a git command and return its output.

        Raises:
            SourceError: git failed; its message is the cause.
        """
        return self._checked(args, self.call(*args, stdin=stdin, env=env, timeout=timeout))

    def line(self, *args: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None) -> str:
        return os.fsdecode(self.out(*args, stdin=stdin, env=env)).strip()

    def transfer(self, *args: str, stdin: bytes = b"", timeout: float = TIMEOUT) -> None:
        """Run a git command that has `--progress`, and show the progress on the terminal.

        Raises:
            SourceError: git failed; its message is the cause.
            subprocess.TimeoutExpired: `timeout` (seconds) passed.
        """
        command, said, began = self._command(args), list[str](), time.monotonic()
        with progress() as bar, tempfile.TemporaryFile() as source:
            source.write(stdin)
            source.seek(0)
            task = bar.add_task("git", total=1)

            def seen(line: str) -> None:
                if found := _PROGRESS.match(line):
                    what = f"{found[1].lower()} {found[2]}/{found[3]}{found[4] or ''}"
                    bar.update(task, description=what, completed=int(found[2]), total=int(found[3]))
                else:
                    said.append(line)

            status = run_shown(command, env=self._variables(), timeout=timeout, seen=seen, stdin=source)
        if status == -signal.SIGKILL and time.monotonic() - began >= timeout:
            raise subprocess.TimeoutExpired(command, timeout)
        self._checked(args, Completed(command, status, b"", "\n".join(said).encode()))

    def _checked(self, args: Sequence[str], done: Completed) -> bytes:
        if done.returncode:
            raise SourceError(f"git {args[0]} failed in {self.folder}", cause=done.tail, remedy=_REMEDY)
        return done.stdout

    def _command(self, args: Sequence[str]) -> tuple[str, ...]:
        exact = () if self.settings is Settings.USER else _EXACT
        slow = _SLOW if self.settings is Settings.REMOTE else ()
        config = (part for item in (*exact, *slow, *self.config) for part in ("-c", item))
        return ("git", "-C", str(self.folder), *config, *args)

    def _variables(self) -> dict[str, str]:
        of_user = _NO_USER if self.settings is Settings.NONE else {}
        return {**_ENVIRONMENT, **of_user, **({"GIT_INDEX_FILE": str(self.index)} if self.index else {})}

    @contextlib.contextmanager
    def _fed(self, given: Iterable[bytes], *args: str) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
        """Start a command that reads `given`; yield it, and the file of its complaints: a full pipe would block it."""
        command = self._command(args)
        log.debug("$ %s", shlex.join(command))
        with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as said:
            source.writelines(given)
            source.seek(0)
            with running(lambda: start(command, None, self._variables(), source, subprocess.PIPE, said)) as process:
                yield process, said

    def git_dir(self) -> Path:
        return Path(self.line("rev-parse", "--absolute-git-dir"))

    def resolve(self, revision: str, kind: str = "commit") -> str:
        """Return the object id of `revision`.

        Raises:
            SourceError: the revision does not exist, or the folder is not a repository.
        """
        done = self.call("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{{kind}}}")
        if done.returncode == 0:
            return done.stdout.decode().strip()
        if self.call("rev-parse", "--git-dir").returncode:
            remedy = "give a git checkout or a bare repository"
            raise SourceError(f"{self.folder} is not a git repository", remedy=remedy)
        cause = "the name is wrong, or the clone is too shallow to have it"
        raise SourceError(f"{self.folder} has no revision {revision!r}", cause=cause, remedy="give one that it has")

    def files(self, tree: str, *paths: str) -> dict[str, Entry]:
        """Return the files of a tree by path, default all of them."""
        found = {}
        for record in self.out("ls-tree", "-r", "-z", "--full-tree", tree, "--", *paths).split(b"\0")[:-1]:
            meta, _, name = record.partition(b"\t")
            mode, _, blob = meta.decode().split(" ", 2)
            path = os.fsdecode(name)
            found[path] = Entry(path, mode, blob)
        return found

    def blobs(self, names: Collection[str]) -> Iterator[bytes | None]:
        """Yield the content of each blob, named by id or as `TREE:PATH`; None for one that the repository lacks.

        Raises:
            SourceError: git failed; its message is the cause.
        """
        requests = (os.fsencode(name) + b"\n" for name in names)
        with self._fed(requests, "cat-file", "--batch", "--buffer") as (process, said):
            assert process.stdout is not None  # noqa: S101
            for _ in names:
                head = process.stdout.readline()
                # "ID TYPE SIZE", or "NAME missing": a name may have blanks, and only a size is a number.
                kind, _, size = head.strip().rpartition(b" ")
                length = int(size) + 1 if size.isdigit() else 0
                data = process.stdout.read(length)
                if not head or len(data) < length:
                    raise SourceError(
                        f"git cat-file failed in {self.folder}", cause=_complaints(process, said), remedy=_REMEDY
                    )
                yield data[:-1] if kind.endswith(b" blob") else None

    def commit(self, tree: str, text: bytes, parent: str = "", author: Author = PROJECT) -> str:
        """Commit `tree` on `parent` and return the commit's id, which depends on the arguments alone."""
        env = {f"GIT_AUTHOR_{key.upper()}": getattr(author, key) for key in ("name", "email", "date")}
        env |= {"GIT_COMMITTER_NAME": PROJECT.name, "GIT_COMMITTER_EMAIL": PROJECT.email}
        env["GIT_COMMITTER_DATE"] = author.date
        parents = ["-p", parent] if parent else []
        return self.line("commit-tree", tree, *parents, "-F", "-", stdin=text, env=env)

    def fast_import(self, files: Iterable[tuple[str, str, bytes]], message: bytes, tag: str) -> None:
        """Commit files (path, mode, content) as `main`, tagged; the id depends on them alone.

        Raises:
            SourceError: git failed; its message is the cause.
        """
        with self._fed(_import_stream(files, message, tag), "fast-import", "--quiet", "--done") as (process, said):
            if process.wait():
                raise SourceError("git fast-import failed", cause=_complaints(process, said))

    def changed_files(self) -> list[str]:
        """Return the paths with unstaged changes, untracked ones included."""
        listing = self.out("status", "--porcelain", "-z", "--untracked-files=normal")
        return [os.fsdecode(record[3:]) for record in listing.split(b"\0")[:-1] if record[2:3] == b" "]


def _complaints(process: subprocess.Popen[bytes], said: IO[bytes]) -> str:
    process.wait()
    said.seek(0)
    return said.read()[-2000:].decode("utf-8", "replace").strip()


def _import_stream(files: Iterable[tuple[str, str, bytes]], message: bytes, tag: str) -> Iterator[bytes]:
    """Yield the commands of git-fast-import(1) for one commit."""
    yield b"feature done\ncommit refs/heads/main\nmark :1\n"
    yield b"committer %s\ndata %d\n%s\n" % (_IMPORTER, len(message), message)
    for path, mode, data in files:
        raw = os.fsencode(path)
        if raw.startswith(b'"') or b"\n" in raw:
            raw = b'"' + raw.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n") + b'"'
        yield b"M %s inline %s\ndata %d\n%s\n" % (mode.encode(), raw, len(data), data)
    yield b"reset refs/tags/%s\nfrom :1\ndone\n" % tag.encode()


def init(folder: Path, branch: str = "main", *, object_format: str = "sha1", bare: bool = False) -> Git:
    """Make an empty repository in `folder`, independent of the user's settings for new ones."""
    git = Git(folder)
    options = [f"--initial-branch={branch}", f"--object-format={object_format}", *(["--bare"] if bare else [])]
    git.out("init", "--quiet", "--template=", *options)
    return git


def repository(folder: Path) -> Git | None:
    """Return git in `folder` if that is the top of a work tree or a bare repository; else None.

    Raises:
        SourceError: git refuses the repository. It is not read as a plain folder, whose files may be uncommitted.
    """
    git = Git(folder)
    done = git.call("rev-parse", "--is-bare-repository", "--show-prefix")
    if done.returncode:
        if os.path.lexists(folder / ".git"):
            what = f"{folder} is a git repository that git cannot read"
            raise SourceError(what, cause=done.tail, remedy="repair it, or give a copy without its .git")
        return None
    bare, prefix = os.fsdecode(done.stdout).split("\n")[:2]
    return git if bare == "true" or prefix == "" else None


def split_revision(spec: str) -> tuple[Path, str | None]:
    """Return path and revision of `PATH` or `PATH@REV`; a path that exists is never split."""
    path = Path(spec).expanduser()
    if path.exists() or "@" not in spec:
        return path, None
    head, _, revision = spec.rpartition("@")
    return Path(head).expanduser(), revision
