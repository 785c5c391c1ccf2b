"""Take up what a person edited in a checkout with conflicts, after a hard look at it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from build.errors import UsageError
from build.git import Git

_MARKER = re.compile(rb"^(<{7}|\|{7}|>{7})( |\r?$)", re.MULTILINE)
_WHOLE = re.compile(rb"^<{7} .*?\n(.*?)^\|{7} .*?\n.*?^={7}\n.*?^>{7} .*?\n", re.MULTILINE | re.DOTALL)


def take_up(git: Git, edit: Sequence[str], left: str, *, drop: bool) -> str:
    """Return the tree a person made of a checkout.

    Args:
        git: the checkout; what was placed is staged in it.
        edit: the files that were to be edited.
        left: id of the tree as it was left for the person.
        drop: keep the new tree's side of every conflict instead.

    Returns:
        Id of the tree, written to the repository.

    Raises:
        UsageError: markers are left, nothing was decided, or other files were changed without being staged.
    """
    strangers = sorted(_unstaged(git) - set(edit))
    if strangers:
        raise UsageError(
            f"changed files that are no part of the conflict: {', '.join(strangers[:5])}",
            cause="the checkout was edited elsewhere, or a build was run in it",
            remedy="git add those that belong to the patch, git checkout or remove the others",
        )
    if drop:
        _drop(git, edit)
    marks = [place for path in edit for place in _marks(git.folder / path, path)]
    if marks:
        raise UsageError(
            f"conflict markers are left: {', '.join(marks[:8])}",
            remedy="edit these places, then use --continue again (or --drop to leave the hunks out)",
        )
    existing = [path for path in edit if (git.folder / path).exists()]
    gone = [path for path in edit if path not in existing]
    if existing:
        git.out("add", "--force", "--", *existing)
    if gone:
        git.out("rm", "--cached", "--quiet", "--ignore-unmatch", "--", *gone)
    tree = git.line("write-tree", "--missing-ok")
    if tree == left and not drop:
        raise UsageError(
            "nothing was decided: the checkout is as it was left",
            cause=f"these need an edit: {', '.join(edit)}",
            remedy="make the change and git add it, or use --continue --drop to leave the hunks out",
        )
    return tree


def _unstaged(git: Git) -> set[str]:
    """Return the files whose work tree is not what is staged, and those git does not know."""
    git.call("update-index", "--refresh", "-q")
    changed = git.out("diff-files", "--name-only", "-z").split(b"\0")
    unknown = git.out("ls-files", "--others", "--exclude-standard", "-z").split(b"\0")
    return {os.fsdecode(name) for name in (*changed, *unknown) if name}


def _marks(file: Path, path: str) -> list[str]:
    """Return the places with markers, as `path:line`."""
    if not file.is_file():
        return []
    data = file.read_bytes()
    found = [match for match in _MARKER.finditer(data) if match[1] == b"<" * 7] or _MARKER.finditer(data)
    return [f"{path}:{data.count(bytes([10]), 0, match.start()) + 1}" for match in found]


def _drop(git: Git, edit: Sequence[str]) -> None:
    for path in edit:
        file = git.folder / path
        if file.is_file():
            file.write_bytes(_WHOLE.sub(rb"\1", file.read_bytes()))
