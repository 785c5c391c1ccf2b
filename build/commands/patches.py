"""`patches`: the overview of patches and releases, on the terminal and as an HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

#: The colours of a bar have one hue: the stronger the colour, the more work the hunks needed.
_HUNKS = {
    "unchanged": ("clean", "offset"),
    "adapted": ("drifted", "file moved"),
    "already upstream": ("already upstream", "partly upstream"),
    "by hand": ("by hand",),
    "open": ("conflict", "file gone"),
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
    title = f"{item.manifest.series.name}: patches by release"
    shown = table(title, "patch", *(column.release for column in item.columns))
    for patch, cells in item.rows:
        shown.add_row(patch.id, *(Text(cell.status.symbol, style=cell.status.style) for cell in cells))
    shown.add_section()
    shown.add_row("release", *(column.progress.word for column in item.columns))
    return shown


def page(series: Sequence[Overview]) -> str:
    """Return the overview as one HTML file: no script, nothing loaded from elsewhere, light and dark."""
    tools = {"legacy": _legacy, "origin": _origin, "hunks_of": _hunks}
    return pages.render("patches.html", series=series, statuses=PatchStatus, steps=Progress, **tools)


def _legacy(about: SeriesEntry, column: Column) -> str:
    late = about.legacy_from and Version(column.release) >= Version(about.legacy_from)
    return "legacy" if late else ""


def _origin(column: Column) -> str:
    source = column.entry.derived_from if column.entry else None
    return f"{'ported' if column.port else 'adapted'} from {source}" if source or column.port else "written for it"


def _hunks(column: Column) -> Iterator[tuple[int, str, int, str]]:
    """Yield shade, label, number and verdicts of each kind of hunk that a port has."""
    counts = dict(column.port)
    for shade, (label, verdicts) in enumerate(_HUNKS.items(), 1):
        words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in verdicts if verdict in counts)
        if words:
            yield shade, label, sum(counts.get(verdict, 0) for verdict in verdicts), words
