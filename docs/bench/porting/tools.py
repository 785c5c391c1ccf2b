"""Run the compared tools on one case, each as its manual says."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from build.git import PROJECT, Git, init
from build.porting.engine import PatchPort, port_series
from build.porting.trees import Tree
from build.process import run
from build.series.commits import export_commit
from build.series.patchfile import parse
from docs.bench.porting.corpus import Case

#: Name of this project's engine among the tools.
OURS = "regenerate-patch"
#: A conflict, with the new tree's side as its group.
_CONFLICT = re.compile(rb"^<{7}[^\n]*\n(.*?)^={7}\n.*?^>{7}.*?\n", re.MULTILINE | re.DOTALL)
#: What to put for a conflict: a line that no file has, or the new tree's side.
MARKER, NEW_SIDE = b"<conflict>\n", rb"\1"
_IDENT = {
    f"GIT_{role}_{key.upper()}": getattr(PROJECT, key)
    for role in ("AUTHOR", "COMMITTER")
    for key in ("name", "email", "date")
}


class Result(Enum):
    """The result of a tool for one hunk."""

    RIGHT = "right"
    WRONG = "wrong"
    LEFT = "left to a human"


@dataclass(frozen=True, slots=True)
class Bench:
    """A case as a repository: tags `old` and `new`, HEAD at `new`, and the patch as a file next to it.

    `conflict` is what a result has instead of a conflict: `MARKER` or `NEW_SIDE`.
    """

    git: Git
    patch: bytes
    file: Path
    conflict: bytes = MARKER


def set_up(case: Case, folder: Path, conflict: bytes = MARKER) -> Bench:
    repo = folder / "repo"
    repo.mkdir(parents=True)
    git = init(repo)
    for tag, files in (("old", case.old), ("patched", case.patched), ("new", case.new)):
        if tag == "new":
            git.out("checkout", "-q", "--detach", "old")
        _write(repo, files)
        git.out("add", "-A")
        git.out("commit", "-q", "--allow-empty", "-m", "change", env=_IDENT)
        git.out("tag", tag)
    patch = export_commit(git, "patched")
    file = folder / "0001-change.patch"
    file.write_bytes(patch)
    return Bench(git, patch, file, conflict)


def _write(repo: Path, files: Mapping[str, bytes]) -> None:
    for path in [p for p in repo.rglob("*") if p.is_file() and ".git" not in p.relative_to(repo).parts]:
        if path.relative_to(repo).as_posix() not in files:
            path.unlink()
    for name, data in files.items():
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_bytes(data)


def _after(bench: Bench) -> dict[str, bytes]:
    """Return the files as a tool left them, with `bench.conflict` for every conflict, and clean up."""
    repo = bench.git.folder
    files = {
        path.relative_to(repo).as_posix(): _CONFLICT.sub(bench.conflict, path.read_bytes())
        for path in repo.rglob("*")
        if path.is_file() and ".git" not in path.relative_to(repo).parts and path.suffix not in {".rej", ".orig"}
    }
    bench.git.call("am", "--abort")
    bench.git.out("reset", "-q", "--hard", "new")
    bench.git.out("clean", "-fdxq")
    return files


def git_apply(bench: Bench) -> dict[str, bytes]:
    bench.git.call("apply", "--3way", str(bench.file))
    return _after(bench)


def git_am(bench: Bench) -> dict[str, bytes]:
    bench.git.call("am", "-q", "-3", str(bench.file), env=_IDENT)
    return _after(bench)


def gnu_patch(bench: Bench) -> dict[str, bytes]:
    """`patch -p1`, with its default fuzz; a change that is there already is skipped."""
    options = ["-p1", "--forward", "--batch", "--no-backup-if-mismatch", "-i", str(bench.file)]
    run(["patch", *options], cwd=bench.git.folder)
    return _after(bench)


OTHERS: dict[str, Callable[[Bench], dict[str, bytes]]] = {
    "git apply --3way": git_apply,
    "git am -3": git_am,
    "patch": gnu_patch,
}


def ours(bench: Bench) -> tuple[dict[str, bytes], PatchPort]:
    old, new = (Tree(bench.git, bench.git.resolve(tag), tag) for tag in ("old", "new"))
    port = port_series([parse(bench.patch, bench.file.name)], old, new)[0]
    files = {path: state.data for path, state in port.files.items() if state is not None}
    rest = {path: new.read(path) for path in new.entries if path not in port.files}
    return {**files, **{path: state.data for path, state in rest.items() if state is not None}}, port
