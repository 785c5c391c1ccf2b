"""The terminal: one console, one log file, one progress display."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

#: Columns when the output goes to a file or a CI log; tables have paths in them.
_WIDTH = None if sys.stdout.isatty() else 140

console = Console(stderr=False, highlight=False, soft_wrap=True, width=_WIDTH)
err_console = Console(stderr=True, highlight=False, soft_wrap=True)
log = logging.getLogger("build")
log.addHandler(logging.NullHandler())  # or `logging` would print errors by itself, a second time


def log_to_file(path: Path) -> None:
    """Write everything that is logged to `path`, which replaces an older log."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, mode="w", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for old in [h for h in log.handlers if isinstance(h, logging.FileHandler)]:
        log.removeHandler(old)
        old.close()
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)


def step(message: str) -> None:
    console.print(f"[bold cyan]::[/] {escape(message)}")
    log.info("%s", message)


def note(message: str) -> None:
    """Print a subordinate line (a reason, a detail) and log it."""
    console.print(f"   [dim]{escape(message)}[/]")
    log.info("  %s", message)


def counted(number: int, what: str) -> str:
    """Return `1 unit` or `2 units`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def table(title: str, *columns: str, caption: str | None = None) -> Table:
    """Return an empty table, whose cells show their whole text on a terminal of any width."""
    made = Table(title=title, caption=caption)
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def progress() -> Progress:
    """Return a progress display, which prints nothing on a pipe."""
    return Progress(console=console, disable=not sys.stdout.isatty(), transient=True)
