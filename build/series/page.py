"""The overview as one HTML file: no script, nothing loaded from elsewhere, light and dark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from packaging.version import Version

from build.pages import render
from build.series.manifest import SeriesEntry
from build.series.overview import Column, Overview, PatchStatus, Progress

#: These colours are used only for the status of a patch or a release.
_CLASSES = {
    PatchStatus.PROVEN: "proven",
    PatchStatus.UNPROVEN: "built",
    PatchStatus.UPSTREAM: "upstream",
    PatchStatus.MISSING: "failed",
    PatchStatus.NOT_NEEDED: "none",
    Progress.PROVEN: "proven",
    Progress.BUILT: "built",
    Progress.PORTED: "built",
    Progress.NONE: "failed",
    Progress.NOT_NEEDED: "none",
}
#: The colours of a bar have one hue: the stronger the colour, the more work the hunks needed.
_HUNKS = {
    "unchanged": ("clean", "offset"),
    "adapted": ("drifted", "file moved"),
    "already upstream": ("already upstream", "partly upstream"),
    "by hand": ("by hand",),
    "open": ("conflict", "file gone"),
}


def page(series: Sequence[Overview]) -> str:
    """Return the HTML."""
    return render(
        "patches.html",
        series=series,
        statuses=PatchStatus,
        steps=Progress,
        classes=_CLASSES,
        legacy=_legacy,
        origin=_origin,
        hunks_of=_hunks,
    )


def _legacy(about: SeriesEntry, column: Column) -> str:
    late = about.legacy_from and Version(column.release) >= Version(about.legacy_from)
    return "legacy" if late else ""


def _origin(column: Column) -> str:
    """Return where the patches of a release come from."""
    source = column.entry.derived_from if column.entry else None
    return f"{'ported' if column.port else 'adapted'} from {source}" if source or column.port else "written for it"


def _hunks(column: Column) -> Iterator[tuple[int, str, int, str]]:
    """Yield shade, label, number and verdicts of each kind of hunk that a port has."""
    counts = dict(column.port)
    for shade, (label, verdicts) in enumerate(_HUNKS.items(), 1):
        words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in verdicts if verdict in counts)
        if words:
            yield shade, label, sum(counts.get(verdict, 0) for verdict in verdicts), words
