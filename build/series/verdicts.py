"""The verdict about a hunk: what happened to it, and how."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """The outcome for one hunk (or a change without hunks) of applying or porting its patch."""

    CLEAN = "clean"
    OFFSET = "offset"
    DRIFTED = "drifted"
    MOVED = "file moved"
    UPSTREAM = "already upstream"
    PARTLY = "partly upstream"
    CONFLICT = "conflict"
    GONE = "file gone"

    @property
    def needs_human(self) -> bool:
        return self in {Verdict.CONFLICT, Verdict.GONE}


class Method(Enum):
    """The method that placed a hunk, in the order in which methods are tried."""

    EXACT = "exact"
    OFFSET = "offset"
    MERGE = "three-way merge"
    MOVED_CODE = "moved code"
    MOVED_FILE = "moved file"
    UPSTREAM = "upstream"
    HUMAN = "human"


@dataclass(frozen=True, slots=True)
class HunkVerdict:
    """The verdict about one hunk.

    Attributes:
        patch: name of the patch file.
        path: the file as the patch names it.
        hunk: number of the hunk in its file, from 1; 0 for a change without hunks (mode, rename, binary).
        verdict: see `Verdict`.
        method: how it was placed; `UPSTREAM` of a conflict says that upstream may have it in another form.
        line: first line of the hunk in the result, from 1; 0 where it has none.
        offset: lines between where the patch says and where it went.
        new_path: the file it went to, if that is another one.
        evidence: why the verdict is what it is, for a person.
    """

    patch: str
    path: str
    hunk: int
    verdict: Verdict
    method: Method
    line: int = 0
    offset: int = 0
    new_path: str = ""
    evidence: str = ""
