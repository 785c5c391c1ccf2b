"""Check the paths of a patch: they, and the targets of symbolic links, must be inside the tree."""

from __future__ import annotations

import os
import re

from build.errors import PatchError
from build.git import SYMLINK
from build.series.model import FileChange

_ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}
_ESCAPE = re.compile(rb'\\([abtnvfr"\\]|[0-3][0-7]{2})')


def refuse(name: str, line: int, what: str, cause: str = "", remedy: str = "") -> PatchError:
    """Return the error for `name` at `line`, for the caller to raise."""
    return PatchError(
        f"{name}:{line}: {what}",
        cause=cause,
        remedy=remedy or "get the patch again from where it came, or correct the line",
    )


def unquote(raw: bytes) -> str:
    """Undo git's C-style quoting of a path (`"a/\\303\\244.c"`); other bytes are kept."""
    if len(raw) >= 2 and raw[:1] == b'"' and raw[-1:] == b'"':
        raw = _ESCAPE.sub(_unescape, raw[1:-1])
    return os.fsdecode(raw)


def _unescape(match: re.Match[bytes]) -> bytes:
    code = match.group(1).decode("ascii")
    return bytes([_ESCAPES[code] if code in _ESCAPES else int(code, 8)])


def problem(path: str) -> str:
    """Return why `path` (relative, leading folders stripped) may not be touched; empty if it may."""
    if not path:
        return "an empty path"
    if "\0" in path or "\n" in path:
        return "a path with a control character"
    if path.startswith("/") or re.match(r"[A-Za-z]:[\\/]", path):
        return "an absolute path"
    parts = path.split("/")
    if ".." in parts:
        return "a path that leaves the tree"
    if any(part in {"", "."} for part in parts):
        return "a path with empty parts"
    # File systems that fold case or have 8.3 names open these as `.git`.
    if any(part.rstrip(". ").lower() in {".git", "git~1"} for part in parts):
        return "a path into a .git folder"
    return ""


def strip(raw: str, count: int) -> str:
    """Remove `count` leading folders, as `patch -pN` does; ValueError if the path has fewer."""
    parts = raw.split("/", count)
    if len(parts) <= count:
        raise ValueError(raw)
    return parts[count]


def check_symlink(name: str, change: FileChange) -> None:
    """Raise PatchError for a symbolic link whose target is absolute or leaves the tree."""
    if change.new_mode != SYMLINK or change.new_path is None:
        return
    target = os.fsdecode(b"".join(line for hunk in change.hunks for line in hunk.added).rstrip(b"\r\n"))
    here = os.path.dirname(change.new_path)  # noqa: PTH120 - a path inside a tree, not on this machine
    where = os.path.normpath(os.path.join(here, target))  # noqa: PTH118
    if target.startswith("/") or where.split("/")[0] == ".." or problem(where):
        raise refuse(
            name,
            change.line,
            f"symbolic link {change.new_path} points outside the tree, to {target!r}",
            cause="writing through such a link would change a file outside the tree",
            remedy="do not use this patch",
        )
