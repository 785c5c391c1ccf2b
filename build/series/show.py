"""Show verdicts on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.table import Table
from rich.text import Text

from build.console import console, log, note, table
from build.series.model import HunkVerdict, Verdict

#: The style and the meaning of each verdict.
LOOKS = {
    Verdict.CLEAN: ("green", "at the line that the patch says"),
    Verdict.OFFSET: ("green", "the same lines, further up or down"),
    Verdict.DRIFTED: ("yellow", "lines around it changed; merged with the old file as base"),
    Verdict.MOVED: ("yellow", "the file or the code moved; found by similarity"),
    Verdict.UPSTREAM: ("cyan", "the new tree has the change already"),
    Verdict.PARTLY: ("magenta", "the new tree has part of the change; the rest was applied"),
    Verdict.CONFLICT: ("bold red", "needs a human"),
    Verdict.GONE: ("bold red", "needs a human: the file is gone"),
}


def rows(verdicts: Sequence[HunkVerdict]) -> list[tuple[HunkVerdict, str]]:
    """Return a verdict and its hunks in words for each row of a table; a file that is gone has one row."""
    found: list[tuple[HunkVerdict, str]] = []
    for _, group in groupby(verdicts, lambda item: (item.patch, item.path, item.evidence, item.verdict)):
        same = list(group)
        if same[0].verdict is Verdict.GONE and len(same) > 1:
            found.append((same[0], f"{same[0].hunk}-{same[-1].hunk}"))
        else:
            found += [(item, str(item.hunk or "-")) for item in same]
    return found


def verdict_table(verdicts: Sequence[HunkVerdict], title: str) -> Table:
    shown = table(title, "patch", "file", "hunk", "line", "verdict", "how")
    last = ""
    for item, hunks in rows(verdicts):
        word = item.verdict.value + (f" {item.offset:+d}" if item.offset else "")
        where = item.path if not item.new_path or item.new_path == item.path else f"{item.path} → {item.new_path}"
        shown.add_row(
            "" if item.patch == last else Text(item.patch),
            Text(where),
            hunks,
            str(item.line or "-"),
            Text(word, style=LOOKS[item.verdict][0]),
            Text("; ".join(part for part in (item.method.value, item.evidence) if part)),
        )
        last = item.patch
    return shown


def show_verdicts(verdicts: Sequence[HunkVerdict], title: str) -> None:
    """Print the hunks that need a look; those that apply as the patch says are only counted."""
    if noteworthy := [item for item in verdicts if item.verdict is not Verdict.CLEAN]:
        console.print(verdict_table(noteworthy, title))
    clean = len(verdicts) - len(noteworthy)
    what = "all" if not noteworthy else f"{clean} of"
    if clean:
        note(f"{what} {len(verdicts)} hunks apply cleanly")
    log.debug("%s", "\n".join(f"{item.patch} {item.path} {item.hunk}: {item.verdict.value}" for item in verdicts))


def legend(verdicts: Sequence[HunkVerdict]) -> str:
    seen = {item.verdict for item in verdicts}
    return "\n".join(f"{word.value}: {meaning}" for word, (_, meaning) in LOOKS.items() if word in seen)
