"""What porting one file's change needs, and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from build.porting.markers import Labels
from build.porting.moved_files import Finder
from build.porting.trees import FileState, Layer
from build.series.model import FileChange
from build.series.verdicts import HunkVerdict, Method, Verdict

Files = Mapping[str, "FileState | None"]


@dataclass(frozen=True, slots=True)
class Context:
    """What a change is ported with.

    Attributes:
        patch: the patch's file name.
        old: the old tree with the patches before this one; `new` the new tree with them as ported.
        finder: finds what moved between the trees.
        labels: what the sides of a conflict are called.
        crlf: the patch itself has DOS line ends.
        gone_since: says when a path disappeared from the new tree, where its history can tell.
    """

    patch: str
    old: Layer
    new: Layer
    finder: Finder
    labels: Labels
    crlf: bool = False
    gone_since: Callable[[str], str] = field(default=lambda _: "")


@dataclass(frozen=True, slots=True)
class ChangePort:
    """A change, ported.

    Attributes:
        verdicts: one per hunk, or one for a change without hunks.
        old: what the change makes of the old tree's files (None: no file).
        new: what it makes of the new tree's, as far as it has a place there.
        marked: files for a person to edit, with markers where they are text.
    """

    verdicts: tuple[HunkVerdict, ...]
    old: Files = field(default_factory=dict)
    new: Files = field(default_factory=dict)
    marked: Files = field(default_factory=dict)


def whole(
    ctx: Context, change: FileChange, verdict: Verdict, evidence: str = "", *, hunks: Sequence[int] = ()
) -> tuple[HunkVerdict, ...]:
    """Return one verdict for a whole change: for hunk 0, or for all of `hunks`."""
    method = {
        Verdict.CLEAN: Method.EXACT,
        Verdict.UPSTREAM: Method.UPSTREAM,
        Verdict.MOVED: Method.MOVED_FILE,
    }.get(verdict, Method.HUMAN)
    path = change.old_path or change.path
    return tuple(HunkVerdict(ctx.patch, path, number, verdict, method, evidence=evidence) for number in (hunks or [0]))
