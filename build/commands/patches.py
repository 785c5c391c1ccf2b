"""`patches`: the overview of patches and releases, on the terminal and as an HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from packaging.version import Version
from rich.table import Table
from rich.text import Text

from build import pages, paths, releases
from build.console import console, note, step, table
from build.series import manifest as manifests
from build.series.manifest import SeriesEntry
from build.series.overview import Column, Overview, PatchStatus, Progress, overview


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
    title = f"{item.manifest.series.name}: patches by release"
    shown = table(title, "patch", *(column.release for column in item.columns))
    for patch, cells in item.rows:
        shown.add_row(patch.id, *(Text(cell.status.symbol, style=cell.status.style) for cell in cells))
    shown.add_section()
    shown.add_row("release", *(column.progress.word for column in item.columns))
    return shown


def page(series: Sequence[Overview]) -> str:
    """Return the overview as one HTML file: no script, nothing loaded from elsewhere, light and dark."""
    return pages.render("patches.html", series=series, statuses=PatchStatus, steps=Progress, legacy=_legacy)


def _legacy(about: SeriesEntry, column: Column) -> str:
    late = about.legacy_from and Version(column.release) >= Version(about.legacy_from)
    return "legacy" if late else ""
