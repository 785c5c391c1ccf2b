"""`patches`: the overview of patches and releases, on the terminal and as an HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from build import paths, releases
from build.console import console, note, step
from build.series import manifest as manifests
from build.series.overview import Overview, PatchStatus, overview
from build.series.page import page

_STYLE = {
    PatchStatus.PROVEN: "green",
    PatchStatus.UNPROVEN: "yellow",
    PatchStatus.UPSTREAM: "blue",
    PatchStatus.MISSING: "bold red",
    PatchStatus.NOT_NEEDED: "dim",
}


def patches(html: Annotated[Path, typer.Option(help="where to write the page")] = paths.DIST / "patches.html") -> None:
    """Show which patches each release needs, has, or does not need."""
    found = [overview(folder, list(releases.load())) for folder in manifests.folders().values()]
    for item in found:
        console.print(_table(item))
        note(item.manifest.series.purpose)
    for status in PatchStatus:
        note(f"{status.symbol} {status.word}: {status.meaning}")
    with paths.atomic_write(html.absolute()) as part:
        part.write_text(page(found), encoding="utf-8")
    step(f"page: {html}")


def _table(item: Overview) -> Table:
    table = Table(title=f"{item.manifest.series.name}: patches by release", title_justify="left")
    table.add_column("patch", overflow="fold")
    for column in item.columns:
        table.add_column(column.release, justify="center", overflow="fold")
    for row in item.rows:
        table.add_row(row.patch.id, *(Text(cell.status.symbol, style=_STYLE[cell.status]) for cell in row.cells))
    table.add_section()
    table.add_row("release", *(column.progress.word for column in item.columns))
    return table
