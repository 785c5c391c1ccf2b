"""A cursor over the lines of a patch, whose errors name the line; and which paths a patch may name."""

from __future__ import annotations

import os
import re

from build.errors import PatchError
from build.git import SYMLINK
from build.series.inspect import lines_of
from build.series.model import FileChange, Hunk

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(.*)", re.DOTALL)
_ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}
_ESCAPE = re.compile(rb'\\([abtnvfr"\\]|[0-3][0-7]{2})')
_CUT = "the file was cut off, or copied only in part"
#: Blank lines that GNU patch assumes at the end of a patch that lacks them: editors remove them.
_CHOPPED = 3


class Reader:
    """The lines of one patch file; `at` is the index of the next one.

    With `mend`, what GNU patch takes and git refuses is read as GNU patch reads it, and `mended` says so.
    """

    def __init__(self, data: bytes, name: str, *, mend: bool = False) -> None:
        self.name = name
        self.mend = mend
        self.mended: list[str] = []
        self.lines = lines_of(data)
        self.at = 0

    def peek(self, ahead: int = 0) -> bytes:
        index = self.at + ahead
        return self.lines[index] if index < len(self.lines) else b""

    def bare(self) -> bytes:
        return self.peek().rstrip(b"\r\n")

    def take(self) -> bytes:
        line = self.peek()
        self.at += 1
        return line

    @property
    def done(self) -> bool:
        return self.at >= len(self.lines)

    def error(self, what: str, cause: str = "", *, line: int = 0) -> PatchError:
        """Return an error for the next line (or `line`, from 1), for the caller to raise."""
        return refuse(self.name, line or min(self.at + 1, len(self.lines)), what, cause)

    def truncated(self, what: str) -> PatchError:
        return self.error(f"the patch ends {what}", _CUT)

    def hunk(self) -> Hunk:
        """Take one hunk, from its `@@` on.

        Raises:
            PatchError: malformed, cut off, or with counts that do not fit its lines.
        """
        line = self.at + 1
        match = _HUNK.fullmatch(self.bare())
        if match is None:
            merge = self.peek().startswith(b"@@@")
            what = f"malformed hunk header {self.bare()[:60].decode('utf-8', 'replace')!r}"
            cause = "a merge's combined diff is not a patch" if merge else "expected @@ -LINE,COUNT +LINE,COUNT @@"
            raise self.error(what, cause)
        old_start, new_start = int(match[1]), int(match[3])
        counts = [1 if match[2] is None else int(match[2]), 1 if match[4] is None else int(match[4])]
        if counts == [0, 0] or (old_start == 0 and counts[0]) or (new_start == 0 and counts[1]):
            raise self.error("a hunk with an impossible range")
        self.take()
        lines = self._body(line, counts)
        if all(text[:1] == b" " for text in lines):
            raise self.error("a hunk that changes nothing", line=line)
        return Hunk(old_start, new_start, tuple(lines), line)

    def _body(self, head: int, counts: list[int]) -> list[bytes]:
        """Take the lines of a hunk whose header, at line `head`, has `counts` (old, new)."""
        lines: list[bytes] = []
        left = list(counts)
        while left[0] > 0 or left[1] > 0 or self.peek()[:1] == b"\\":
            if self.done:
                return lines + self._chopped(head, left)
            text = self.take()
            if text[:1] == b"\\":
                # Apply a `\ No newline at end of file` to the line before it.
                if not lines or not lines[-1].endswith(b"\n"):
                    self.at -= 1
                    raise self.error("'\\ No newline at end of file' without a line before it")
                lines[-1] = lines[-1][:-1]
                continue
            if text in {b"\n", b"\r\n"}:  # editors and mail programs strip the blank of an empty context line
                text = b" " + text
            left[0] -= text[:1] in {b" ", b"-"}
            left[1] -= text[:1] in {b" ", b"+"}
            if text[:1] not in {b" ", b"-", b"+"} or min(left) < 0:
                self.at -= 1
                raise self._counts(head, counts)
            lines.append(self._whole(text))
        self._goes_on(head, counts)
        return lines

    def _chopped(self, head: int, left: list[int]) -> list[bytes]:
        """Return the blank context lines that the end of the hunk of line `head` lacks; `left` counts old and new."""
        if not self.mend or left[0] != left[1] or left[0] > _CHOPPED:
            raise self.truncated(f"inside the hunk of line {head}")
        self.mended.append(f"the hunk of line {head} lacks its last {left[0]} lines, which are read as blank")
        return [b" \n"] * left[0]

    def _whole(self, text: bytes) -> bytes:
        """Return a hunk's line with its end, which only the patch's last line may lack, if that is context."""
        if text.endswith(b"\n"):
            return text
        if not self.mend or text[:1] != b" ":
            self.at -= 1
            raise self.truncated("in the middle of a line")
        self.mended.append(f"line {self.at} lacks its line end")
        return text + b"\n"

    def _counts(self, head: int, counts: list[int]) -> PatchError:
        """Return the error for lines that do not fit a hunk's counts."""
        what = f"line does not fit the hunk of line {head}: it has {counts[0]} old, {counts[1]} new lines"
        return self.error(what, "the counts in the @@ line are wrong, or the patch was edited by hand")

    def _goes_on(self, head: int, counts: list[int]) -> None:
        """Refuse further hunk lines after a hunk that is complete by its counts."""
        text = self.peek()
        next_file = text.startswith(b"--- ") and self.peek(1).startswith(b"+++ ")
        signature = text.rstrip(b"\r\n") in {b"-- ", b"--", b"---"}
        if text[:1] in {b"+", b"-", b" "} and text.strip() and not next_file and not signature:
            raise self._counts(head, counts)


def refuse(name: str, line: int, what: str, cause: str = "", remedy: str = "") -> PatchError:
    """Return the error for `name` at `line`, for the caller to raise."""
    remedy = remedy or "get the patch again from where it came, or correct the line"
    return PatchError(f"{name}:{line}: {what}", cause=cause, remedy=remedy)


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
        what = f"symbolic link {change.new_path} points outside the tree, to {target!r}"
        raise refuse(name, change.line, what, remedy="do not use this patch")
