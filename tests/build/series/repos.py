"""Little git repositories and patches for tests: real git, no mocks."""

from __future__ import annotations

from pathlib import Path

from build.git import Git
from build.series.model import PatchFile
from build.series.patchfile import parse

IDENT = {
    "GIT_AUTHOR_NAME": "A U Thor",
    "GIT_AUTHOR_EMAIL": "author@example.org",
    "GIT_AUTHOR_DATE": "2024-05-01T10:00:00+0200",
    "GIT_COMMITTER_NAME": "A U Thor",
    "GIT_COMMITTER_EMAIL": "author@example.org",
    "GIT_COMMITTER_DATE": "2024-05-01T10:00:00+0200",
}
DEP3 = """Description: what it does
Origin: vendor
Forwarded: no
Applied-Upstream: no
Last-Update: 2024-05-01"""


def numbered(count: int, **changed: str) -> bytes:
    """`count` distinct lines; `l5="x"` replaces line 5, with an empty text it is gone."""
    lines = [changed.get(f"l{n}", f"line {n} of the file\n") for n in range(1, count + 1)]
    return "".join(lines).encode()


def write(folder: Path, files: dict[str, bytes | None]) -> None:
    for name, data in files.items():
        path = folder / name
        if data is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def make_repo(folder: Path, files: dict[str, bytes | None]) -> Git:
    """A repository with one commit, tagged `base`."""
    folder.mkdir(parents=True, exist_ok=True)
    git = Git(folder)
    git.out("init", "-q", "-b", "main")
    commit(git, files, "base")
    git.out("tag", "base")
    return git


def commit(git: Git, files: dict[str, bytes | None], subject: str) -> str:
    write(git.folder, files)
    git.out("add", "-A")
    git.out("commit", "-q", "--allow-empty", "-m", f"{subject}\n\nA sentence.\n\n{DEP3}", env=IDENT)
    return git.line("rev-parse", "HEAD")


def make_patch(git: Git, files: dict[str, bytes | None], subject: str = "change") -> bytes:
    """Commit `files` on HEAD, return that commit as a canonical patch, and go back."""
    from build.series.commits import export_commit

    before = git.line("rev-parse", "HEAD")
    data = export_commit(git, commit(git, files, subject))
    git.out("reset", "-q", "--hard", before)
    return data


def parsed(data: bytes, name: str = "0001-change.patch") -> PatchFile:
    return parse(data, name)
