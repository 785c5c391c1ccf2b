"""`clean`: what the cache holds, and freeing it by age or size."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Annotated

import typer
from rich.filesize import decimal
from rich.table import Table

from build import clearing
from build.clearing import Entry
from build.console import console, note, step
from build.console import table as console_table
from build.errors import BusyError, UsageError
from build.paths import cache

_DAYS = {"h": 1 / 24, "d": 1.0, "w": 7.0}
_BYTES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def days(text: str) -> float:
    """Return an age such as `12h`, `30d` or `4w` in days."""
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([hdw])", text.strip()):
        return float(match[1]) * _DAYS[match[2]]
    raise UsageError(f"--older-than {text} is not an age", remedy="give a number of hours, days or weeks: 12h, 30d, 4w")


def size(text: str) -> int:
    """Return a size such as `500MB` or `5GB` in bytes."""
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", text.strip(), re.IGNORECASE):
        return int(float(match[1]) * _BYTES[match[2].upper()])
    raise UsageError(f"--keep {text} is not a size", remedy="give e.g. 500MB or 5GB")


def table(entries: Iterable[Entry]) -> Table:
    shown = console_table(f"cache: {cache()}", "kind", "holds", "entries", "size", "last use")
    every = list(entries)
    for kind, holds in clearing.KINDS.items():
        found = [item for item in every if item.kind == kind]
        used = max((item.used for item in found), default=0.0)
        when = datetime.fromtimestamp(used, timezone.utc).strftime("%Y-%m-%d %H:%M UTC") if found else "-"
        shown.add_row(kind, holds, str(len(found)), decimal(sum(item.size for item in found)), when)
    shown.add_row("all", "", str(len(every)), decimal(sum(item.size for item in every)), "")
    return shown


def clean(
    older_than: Annotated[str, typer.Option(help="free what was last used longer ago, e.g. 30d")] = "",
    keep: Annotated[str, typer.Option(help="free the least recently used until this size is left, e.g. 5GB")] = "",
    dry_run: Annotated[bool, typer.Option(help="only tell what would be freed")] = False,
) -> None:
    """Print what the cache holds; with --older-than or --keep free it. What a run uses is never freed."""
    age, most = days(older_than) if older_than else None, size(keep) if keep else None
    found = clearing.entries()
    console.print(table(found))
    chosen = clearing.choose(found, time.time(), days=age, keep=most)
    if age is None and most is None:
        note("nothing is freed without --older-than or --keep")
        return
    freed, busy, failed = list[Entry](), list[str](), list[str]()
    for item in chosen:
        name = f"{item.kind}/{item.path.name}"
        try:
            if not clearing.free(item, really=not dry_run):
                busy.append(name)
                continue
        except OSError as error:
            failed.append(f"{item.path}: {error.strerror or error}")
            continue
        freed.append(item)
        note(f"{'would free' if dry_run else 'freed'} {decimal(item.size)}: {name}")
    if busy:
        note(f"in use, left: {', '.join(busy)}")
    verb = "would be freed" if dry_run else "freed"
    step(f"{decimal(sum(item.size for item in freed))} {verb}, {len(freed)} entries")
    if failed:
        remedy = "remove them by hand, as the user who owns them"
        raise BusyError(f"{len(failed)} entries could not be removed", cause="\n".join(failed), remedy=remedy)
