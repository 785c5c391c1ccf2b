"""The overview as one HTML file: no script, nothing loaded from elsewhere, light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from packaging.version import Version

from build.series.overview import Cell, Column, Overview, PatchStatus, Progress, Row

_CSS = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5d6b7d; --line: #dde3ea; --paper: #f6f8fa; --card: #fff;
  --proven: #12805c; --unproven: #b26a00; --upstream: #2563c9; --missing: #c62f3b; --unneeded: #7c8896;
  --hunk1: #d9d2ee; --hunk2: #b4a5e0; --hunk3: #8a72c9; --hunk4: #5f439f; --hunk5: #2f1a5e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf2; --soft: #93a1b4; --line: #2b3543; --paper: #10151c;
  --card: #18202a; --proven: #3fcf9a; --unproven: #f0b254; --upstream: #78a9ff; --missing: #ff7b85; --unneeded: #8a97a8;
  --hunk1: #3b3358; --hunk2: #5c4d8c; --hunk3: #8371c0; --hunk4: #b3a4ea; --hunk5: #ece6ff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.55 system-ui, sans-serif;
  overflow-wrap: anywhere; }
main { max-width: 1120px; margin: 0 auto; padding: clamp(20px, 5vw, 48px) clamp(12px, 3vw, 24px) 64px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -.01em; }
h2 { font-size: 21px; margin: 48px 0 6px; }
code { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, monospace; }
.lead, .purpose { color: var(--soft); max-width: 76ch; margin: 0 0 20px; }
.legend { display: grid; gap: 4px 10px; grid-template-columns: max-content 1fr; margin: 22px 0 0; }
.legend dt { font-weight: 600; } .legend dd { margin: 0; color: var(--soft); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 12px; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { padding: 12px clamp(6px, 1.2vw, 14px); border-bottom: 1px solid var(--line); text-align: center;
  vertical-align: top; overflow-wrap: normal; }
tbody tr:last-child > * { border-bottom: 0; }
thead th { font-weight: 600; white-space: nowrap; }
thead small, td small { display: block; font-weight: 400; color: var(--soft); font-size: 12px; white-space: nowrap; }
th:first-child { position: sticky; left: 0; background: var(--card); text-align: left; font-weight: 600;
  min-width: min(34vw, 250px); max-width: 340px; }
th[scope=row] small { display: block; font-weight: 400; color: var(--soft); margin-top: 2px; }
.legacy { background: color-mix(in srgb, var(--unneeded) 9%, transparent); }
.mark { font-size: 20px; line-height: 1.2; }
.proven { color: var(--proven); } .unproven { color: var(--unproven); } .upstream { color: var(--upstream); }
.missing { color: var(--missing); } .unneeded { color: var(--unneeded); }
.releases { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 330px), 1fr)); gap: 14px;
  margin-top: 16px; }
.release { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 16px 18px; }
.release h3 { margin: 0 0 6px; font-size: 16px; display: flex; justify-content: space-between; gap: 8px; }
.release p, .release ul { margin: 8px 0 0; color: var(--soft); font-size: 13.5px; }
.tag { font-size: 12px; font-weight: 600; border: 1px solid currentColor; border-radius: 99px; padding: 1px 9px;
  white-space: nowrap; }
.bar { display: flex; height: 8px; border-radius: 4px; overflow: hidden; margin: 10px 0 0; }
.bar i { min-width: 3px; }
.key { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: 0 14px; }
.key i { display: inline-block; width: 9px; height: 9px; border-radius: 2px; margin-right: 6px; }
.note { color: var(--soft); font-size: 13.5px; margin: 12px 2px 0; max-width: 90ch; }
@media (max-width: 560px) { th[scope=row] small { display: none; } }
"""
#: These colours are used only for the status of a patch or a release.
_CLASS = {
    PatchStatus.PROVEN: "proven",
    PatchStatus.UNPROVEN: "unproven",
    PatchStatus.UPSTREAM: "upstream",
    PatchStatus.MISSING: "missing",
    PatchStatus.NOT_NEEDED: "unneeded",
    Progress.PROVEN: "proven",
    Progress.BUILT: "unproven",
    Progress.PORTED: "unproven",
    Progress.NONE: "missing",
    Progress.NOT_NEEDED: "unneeded",
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
    legend = "".join(
        f'<dt><span class="mark {_CLASS[item]}">{item.symbol}</span> {item.word}</dt><dd>{item.meaning}</dd>'
        for item in PatchStatus
    )
    legend += "".join(
        f'<dt><span class="tag {_CLASS[item]}">{item.word}</span></dt><dd>release: {item.meaning}</dd>'
        for item in Progress
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Patches by release</title><style>{_CSS}</style></head><body><main>"
        "<h1>Patches by release</h1>"
        '<p class="lead">What each PyTorch release needs, what it has, and how far that is proven.</p>'
        f'<dl class="legend">{legend}</dl>{"".join(map(_series, series))}</main></body></html>\n'
    )


def _series(item: Overview) -> str:
    about = item.manifest.series
    head = "".join(_head(item, column) for column in item.columns)
    body = "".join(_row(item, row) for row in item.rows)
    cards = "".join(_card(column) for column in item.columns if column.entry is not None)
    note = f'<p class="note">Shaded: {escape(about.legacy_reason)}</p>' if about.legacy_reason else ""
    return (
        f'<h2>{escape(about.name)}</h2><p class="purpose">{escape(about.purpose)}</p>'
        f'<div class="card"><table><thead><tr><th scope="col"></th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
        f'{note}<div class="releases">{cards}</div>'
    )


def _legacy(item: Overview, column: Column) -> str:
    since = item.manifest.series.legacy_from
    late = since and Version(column.release) >= Version(since)
    return " legacy" if late else ""


def _head(item: Overview, column: Column) -> str:
    word = column.progress.word
    return f'<th scope="col" class="{_legacy(item, column)}">{escape(column.release)}<small>{word}</small></th>'


def _row(item: Overview, row: Row) -> str:
    upstream = (
        f"<small>upstream since {escape(row.patch.applied_upstream)}</small>" if row.patch.applied_upstream else ""
    )
    cells = "".join(_cell(item, column, cell) for column, cell in zip(item.columns, row.cells, strict=True))
    name = f"<code>{escape(row.patch.id)}</code>"
    return f'<tr><th scope="row">{name}<small>{escape(row.patch.reason)}</small>{upstream}</th>{cells}</tr>'


def _cell(item: Overview, column: Column, cell: Cell) -> str:
    hunks, plus, minus = cell.size
    size = f"<small>{hunks} hunks<br>+{plus} &minus;{minus}</small>" if hunks else ""
    return (
        f'<td class="{_legacy(item, column)}" title="{escape(cell.why)}">'
        f'<span class="mark {_CLASS[cell.status]}" role="img" aria-label="{cell.status.word}">'
        f"{cell.status.symbol}</span>{size}</td>"
    )


def _card(column: Column) -> str:
    """Return the card of a release: the origin of its patches, the result of its port, and its note."""
    entry = column.entry
    if entry is None:
        return ""
    origin = f"ported from {escape(entry.derived_from)}" if column.port else "written for it"
    if entry.derived_from and not column.port:
        origin = f"adapted from {escape(entry.derived_from)}"
    tag = f'<span class="tag {_CLASS[column.progress]}">{column.progress.word}</span>'
    return (
        f'<div class="release"><h3>{escape(column.release)} {tag}</h3><code>{entry.base_commit[:12]}</code> · {origin}'
        f"{_bar(column.port)}<p>{escape(entry.note)}</p></div>"
    )


def _bar(port: Iterable[tuple[str, int]]) -> str:
    """Return a bar of a port's hunks by verdict, and the key to its colours."""
    counts = dict(port)
    parts, key = "", ""
    for shade, (label, verdicts) in enumerate(_HUNKS.items(), 1):
        words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in verdicts if verdict in counts)
        number = sum(counts.get(verdict, 0) for verdict in verdicts)
        if number:
            colour = f"background:var(--hunk{shade})"
            parts += f'<i style="flex:{number};{colour}"></i>'
            key += f'<li title="{words}"><i style="{colour}"></i>{number} {label}</li>'
    total = f"<li>{sum(counts.values())} hunks:</li>"
    return f'<div class="bar">{parts}</div><ul class="key">{total}{key}</ul>' if counts else ""
