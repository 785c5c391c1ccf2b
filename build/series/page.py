"""The overview as one HTML file: no script, nothing loaded from elsewhere, light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby

from packaging.version import Version

from build.series.overview import Cell, Column, Overview, PatchStatus, Row

_CSS = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5d6b7d; --line: #dde3ea; --paper: #f6f8fa; --card: #fff;
  --needed: #12805c; --unverified: #b26a00; --upstream: #2563c9; --missing: #c62f3b; --na: #98a4b3; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf2; --soft: #93a1b4; --line: #2b3543; --paper: #10151c;
  --card: #18202a; --needed: #3fcf9a; --unverified: #f0b254; --upstream: #78a9ff; --missing: #ff7b85; --na: #5a687a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.55 system-ui, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 48px 24px 64px; }
h1 { font-size: 28px; margin: 0 0 4px; letter-spacing: -.01em; }
h2 { font-size: 21px; margin: 48px 0 6px; }
code { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, monospace; }
.lead, .purpose { color: var(--soft); max-width: 76ch; margin: 0 0 20px; }
.legend { display: flex; flex-wrap: wrap; gap: 6px 22px; padding: 0; margin: 22px 0 0; list-style: none; }
.legend span { color: var(--soft); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 12px; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { padding: 12px 14px; border-bottom: 1px solid var(--line); text-align: center; vertical-align: top; }
tbody tr:last-child > * { border-bottom: 0; }
thead th { font-weight: 600; white-space: nowrap; }
thead small, td small { display: block; font-weight: 400; color: var(--soft); font-size: 12px; }
th[scope=row] { text-align: left; min-width: 250px; max-width: 340px; font-weight: 600; }
th[scope=row] small { display: block; font-weight: 400; color: var(--soft); margin-top: 2px; }
.legacy { background: color-mix(in srgb, var(--na) 9%, transparent); }
.mark { font-size: 20px; line-height: 1.2; }
.needed { color: var(--needed); } .unverified { color: var(--unverified); } .upstream { color: var(--upstream); }
.missing { color: var(--missing); } .na { color: var(--na); }
.releases { display: grid; grid-template-columns: repeat(auto-fill, minmax(330px, 1fr)); gap: 14px; margin-top: 16px; }
.release { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 16px 18px; }
.release h3 { margin: 0 0 6px; font-size: 16px; display: flex; justify-content: space-between; }
.release p { margin: 8px 0 0; color: var(--soft); font-size: 13.5px; }
.tag { font-size: 12px; font-weight: 600; border: 1px solid currentColor; border-radius: 99px; padding: 1px 9px; }
.bar { display: flex; height: 8px; border-radius: 4px; overflow: hidden; margin: 10px 0 4px; }
.bar i { display: block; min-width: 3px; }
.note { color: var(--soft); font-size: 13.5px; margin: 12px 2px 0; max-width: 90ch; }
"""
_CLASS = {
    PatchStatus.NEEDED: "needed",
    PatchStatus.UNVERIFIED: "unverified",
    PatchStatus.UPSTREAM: "upstream",
    PatchStatus.MISSING: "missing",
    PatchStatus.NOT_APPLICABLE: "na",
}
_VERIFIED = {"probed": "needed", "compiled": "unverified", "ported": "unverified", "none": "missing"}
_BAR = {
    "clean": "needed",
    "offset": "needed",
    "drifted": "unverified",
    "file moved": "unverified",
    "by hand": "upstream",
    "partly upstream": "upstream",
    "already upstream": "upstream",
    "conflict": "missing",
    "file gone": "missing",
}


def page(series: Sequence[Overview]) -> str:
    """Return the page."""
    legend = "".join(
        f'<li><b class="mark {_CLASS[item]}">{item.symbol}</b> {item.word} <span>· {item.meaning}</span></li>'
        for item in PatchStatus
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Patches by release</title><style>{_CSS}</style></head><body><main>"
        "<h1>Patches by release</h1>"
        '<p class="lead">What each PyTorch release needs, what it has, and how far that is proven.</p>'
        f'<ul class="legend">{legend}</ul>{"".join(map(_series, series))}</main></body></html>\n'
    )


def _series(item: Overview) -> str:
    """Return one series: its table, and a card per release."""
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
    late = item.legacy and Version(column.release) >= Version(item.legacy)
    return " legacy" if late else ""


def _head(item: Overview, column: Column) -> str:
    state = column.entry.verified.value if column.entry else "no patches"
    return f'<th scope="col" class="{_legacy(item, column)}">{escape(column.release)}<small>{state}</small></th>'


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
        f'<span class="mark {_CLASS[cell.standing]}" role="img" aria-label="{cell.standing.word}">'
        f"{cell.standing.symbol}</span>{size}</td>"
    )


def _card(column: Column) -> str:
    """Return the card of a release: where its patches come from, how its port went, what is known."""
    entry = column.entry
    if entry is None:
        return ""
    origin = f"ported from {escape(entry.derived_from)}" if column.port else "written for it"
    if entry.derived_from and not column.port:
        origin = f"adapted from {escape(entry.derived_from)}"
    tag = f'<span class="tag {_VERIFIED[entry.verified.value]}">{entry.verified.value}</span>'
    return (
        f'<div class="release"><h3>{escape(column.release)} {tag}</h3><code>{entry.base_commit[:12]}</code> · {origin}'
        f"{_bar(column.port)}<p>{escape(entry.note)}</p></div>"
    )


def _bar(port: Iterable[tuple[str, int]]) -> str:
    """Return how a port went, as a bar with its words."""
    counts = dict(port)
    if not counts:
        return ""
    known = [(word, counts[word]) for word in _BAR if word in counts]
    colours = [(colour, sum(n for _, n in group)) for colour, group in groupby(known, key=lambda p: _BAR[p[0]])]
    parts = "".join(f'<i style="flex:{n};background:var(--{colour})"></i>' for colour, n in colours)
    words = ", ".join(f"{n} {word}" for word, n in known)
    return f'<div class="bar">{parts}</div><small>{sum(counts.values())} hunks: {words}</small>'
