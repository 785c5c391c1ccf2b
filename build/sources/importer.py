"""Files into a git repository: the same files give the same commit, on every machine and from every origin."""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TypeAlias

from build.errors import SourceError
from build.git import REMEDY, verb
from build.paths import cache
from build.process import environment, run
from build.releases import Release
from build.seals import built
from build.sources.tree import TreePurpose

#: What an overlay is made from: all code of torch's own libraries and the CMake files that name their macros.
#: Files of the top level come along, except dot files, which belong to the forge.
OVERLAY_PATHS = ("aten", "c10", "caffe2", "cmake", "torch")

#: Raised when an import gives another commit for the same files.
FORMAT = "1"

_SETTINGS = (
    "safe.directory=*",
    "core.hooksPath=/dev/null",
    "core.autocrlf=false",
    "core.eol=lf",
    "core.attributesFile=/dev/null",
)
_SIGNATURE = b"multiworld <multiworld@localhost> 0 +0000"


@dataclass(frozen=True, slots=True)
class Entry:
    """One file: path from the top of the tree, git mode (`100644`, `100755`, `120000`) and content."""

    path: str
    mode: str
    data: bytes


#: A stream of files; closing it ends what it reads from (a process, an archive, a temporary folder).
Entries: TypeAlias = Generator[Entry, None, None]


def wanted(path: str, need: TreePurpose) -> bool:
    """Whether the file at `path` belongs into a tree for `need`."""
    if need is TreePurpose.FULL:
        return True
    top, slash, _ = path.partition("/")
    return top in OVERLAY_PATHS if slash else not top.startswith(".")


def check_inside(path: str, target: bytes | None = None) -> None:
    """Refuse a path, or a symbolic link's target, that reaches outside of the tree or into a `.git` folder.

    Raises:
        SourceError: it does.
    """
    pure = PurePosixPath(path)
    bad = pure.is_absolute() or ".." in pure.parts or any(part.lower() == ".git" for part in pure.parts)
    if target is not None and not bad:
        depth = len(pure.parts) - 1
        for part in PurePosixPath(target.decode("utf-8", "surrogateescape")).parts:
            depth += -1 if part == ".." else 1
            bad = bad or depth < 0 or part == "/"
    if bad:
        raise SourceError(
            f"the source has a member that reaches outside: {path}"
            + (f" -> {target.decode('utf-8', 'replace')}" if target is not None else ""),
            cause="a damaged or a malicious archive",
            remedy="get the source from its publisher",
        )


def _quoted(path: str) -> bytes:
    """Return a path as fast-import wants it (git-fast-import(1), "<path>")."""
    raw = path.encode("utf-8", "surrogateescape")
    if raw.startswith(b'"') or b"\n" in raw:
        return b'"' + raw.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n") + b'"'
    return raw


def _stream(entries: Iterable[Entry], message: bytes, tag: str) -> Iterator[bytes]:
    """Yield the commands of git-fast-import(1) for one commit with `entries`, tagged."""
    yield b"feature done\ncommit refs/heads/main\nmark :1\n"
    yield b"committer " + _SIGNATURE + b"\ndata %d\n" % len(message) + message + b"\n"
    for entry in entries:
        check_inside(entry.path, entry.data if entry.mode == "120000" else None)
        yield b"M " + entry.mode.encode() + b" inline " + _quoted(entry.path) + b"\n"
        yield b"data %d\n" % len(entry.data) + entry.data + b"\n"
    yield b"reset refs/tags/" + tag.encode() + b"\nfrom :1\ndone\n"


def _feed(pipe: IO[bytes], entries: Iterable[Entry], message: bytes, tag: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # git says why on its error output
        for block in _stream(entries, message, tag):
            pipe.write(block)
    # What is still buffered has no reader either; unclosed, it would be flushed again where nobody expects an error.
    with contextlib.suppress(BrokenPipeError):
        pipe.close()


def command(repo: Path, *arguments: str | Path) -> list[str | Path]:
    """Return a git command in `repo`, whoever owns that; the user's hooks and line ends stay out, of submodules too."""
    return ["git", *(part for item in _SETTINGS for part in ("-c", item)), "-C", repo, *arguments]


def git(repo: Path, *arguments: str | Path, timeout: float = 600.0) -> bytes:
    """Run git in `repo` and return its output.

    Raises:
        SourceError: it failed; the message has git's own words.
    """
    done = run(command(repo, *arguments), env={"GIT_TERMINAL_PROMPT": "0"}, timeout=timeout)
    if done.returncode:
        raise SourceError(f"git {verb(arguments)} failed in {repo}", cause=done.tail, remedy=REMEDY)
    return done.stdout


def init(repo: Path) -> None:
    """Make an empty repository whose work tree is exact to the byte, whatever the user's configuration."""
    done = run(["git", "init", "-q", "--template=", "--object-format=sha1", "-b", "main", repo])
    if done.returncode:
        raise SourceError("git init failed", cause=done.tail)
    for key, value in (("core.autocrlf", "false"), ("core.symlinks", "true"), ("gc.auto", "0")):
        git(repo, "config", key, value)
    info = repo / ".git" / "info"
    info.mkdir(exist_ok=True)
    # Stronger than any .gitattributes of the tree.
    (info / "attributes").write_text("* -text -ident -filter -working-tree-encoding\n")


def fill(repo: Path, entries: Iterable[Entry], message: str, tag: str) -> None:
    """Commit `entries` into the new repository `repo` and check them out."""
    init(repo)
    with subprocess.Popen(
        command(repo, "fast-import", "--quiet", "--done"),
        env=environment(),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None  # noqa: S101
        assert process.stderr is not None  # noqa: S101
        try:
            _feed(process.stdin, entries, message.encode(), tag)
            complaint = process.stderr.read()
        except BaseException:
            process.kill()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()  # what is buffered has no reader any more
            raise
    if process.returncode:
        raise SourceError("git fast-import failed", cause=complaint.decode("utf-8", "replace")[-2000:])
    if not git(repo, "ls-tree", "--name-only", "main", "--", "torch/csrc").strip():
        raise SourceError(
            "the source is not PyTorch's: it has no torch/csrc",
            cause="another project, or an archive without the one top folder that source archives have",
        )
    git(repo, "reset", "-q", "--hard", "main")


def cache_path(release: Release, key: str, need: TreePurpose) -> Path:
    """Return where the repository for `key` lies in the cache, there or not."""
    identity = hashlib.sha256("\0".join([FORMAT, need.value, *OVERLAY_PATHS, key]).encode()).hexdigest()
    return cache("sources") / f"{release.version}-{identity[:16]}"


def cached_tree(release: Release, key: str, need: TreePurpose, entries: Callable[[], Entries]) -> Path:
    """Return the cached repository for `key`, importing `entries` on the first call, and again when it is damaged.

    Args:
        release: whose tag and version the commit carries.
        key: what identifies the content: a commit, a digest, a fingerprint.
        need: chooses the files.
        entries: gives the files, called only when the cache has none.

    Raises:
        SourceError: nothing could be imported, or a member reaches outside.
    """

    def import_all(part: Path) -> None:
        with contextlib.closing(entries()) as stream:
            chosen = (entry for entry in stream if wanted(entry.path, need))
            fill(part, chosen, f"PyTorch {release.version}\n", release.tag)

    return built(cache_path(release, key, need), f"the source of PyTorch {release.version}", import_all)
