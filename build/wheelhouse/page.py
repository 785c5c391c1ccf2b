"""The front page of the wheelhouse: releases, wheels and their proofs, with the command that installs each.

One HTML file that loads nothing; its script fills in the page's own address and copies commands.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from packaging.version import Version

from build.wheelhouse import proofs, simple
from build.wheelhouse.attestation import STATEMENT, SUFFIX
from build.wheelhouse.model import Form, Wheel
from build.wheelhouse.proofs import State

_CLASS = {State.PROVEN: "proven", State.BUILT: "built", State.FAILED: "failed", State.FOREIGN: "none"}
#: What the table shows of a yanked wheel instead of its state: colour, symbol, word, meaning.
_YANKED = ("failed", "⊘", "yanked", "installed only where its version is pinned; the reason is with the wheel")
_LEAD = (
    "PyTorch with the patches that let a job survive dead peers. Each command installs one wheel and checks its "
    "SHA-256; everything else comes from your package index. Install the patched wheel or the overlay wheel, not both."
)


def page(wheels: Sequence[Wheel], signed_by: str, url: str) -> str:
    """Return the HTML.

    Args:
        signed_by: who signs the provenance, e.g. `key 1f2e…`; empty for nobody.
        url: where the wheelhouse is served; empty: the script fills in where it is found.
    """
    here = Path(__file__).parent
    style, script = ((here / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    releases = sorted({_release(item) for item in wheels if item.made}, key=Version, reverse=True)
    others = [item for item in wheels if item.made is None]
    cards = "".join(_section(f"PyTorch {name}", _of(wheels, name), url) for name in releases)
    cards += _section("Other packages", others, url) if others else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Wheelhouse</title><style>{style}</style></head><body><main>"
        f'<h1>Wheelhouse</h1><p class="lead">{_LEAD}</p>{_facts(wheels, releases, signed_by)}'
        f"{_matrix(wheels, releases)}{cards}{_use(url)}</main><script>{script}</script></body></html>\n"
    )


def _release(item: Wheel) -> str:
    return item.made.provenance.release if item.made else ""


def _of(wheels: Iterable[Wheel], release: str) -> list[Wheel]:
    """Return the wheels of a release: patched ones first, by Python."""
    found = [item for item in wheels if _release(item) == release]
    return sorted(found, key=lambda item: (item.form is Form.OVERLAY, _python_key(proofs.pythons(item)), item.name))


def _python_key(python: str) -> tuple[int, ...]:
    return tuple(int(part) for part in python.split(".")) if python != "any" else (99,)


def _facts(wheels: Sequence[Wheel], releases: Sequence[str], signed_by: str) -> str:
    who = " ".join(word if len(word) < 20 else f"{word[:16]}…" for word in signed_by.split())
    signed = f'<li class="proven" title="{escape(signed_by)}">signed by {escape(who)}</li>'
    unsigned = '<li class="built">not signed</li>'
    return (
        f'<ul class="facts"><li>{_count(len(wheels), "wheel")}</li>'
        f"<li>{_count(len(releases), 'release')} of PyTorch</li>"
        f"<li>{_size(sum(item.size for item in wheels))}</li>{signed if signed_by else unsigned}</ul>"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _matrix(wheels: Sequence[Wheel], releases: Sequence[str]) -> str:
    """Return the table of releases and wheels; each cell leads to the wheel."""
    if not releases:
        return ""
    # The overlay, then the newest Python first: what a narrow window cuts off is old.
    found = {_column(item) for item in wheels if item.made}
    columns = sorted(found, key=lambda c: (c[0] == "overlay", _python_key(c[1])), reverse=True)
    rows = "".join(_row(name, _of(wheels, name), columns) for name in releases)
    return (
        '<h2>Releases</h2><div class="scroll" role="region" aria-label="Releases" tabindex="0">'
        f"<table><thead>{_head(columns)}</thead><tbody>{rows}</tbody></table></div>{_legend(wheels)}"
    )


def _head(columns: Sequence[tuple[str, str]]) -> str:
    """Return the two rows of the head: the forms, and below the patched ones their Pythons."""
    pythons = [python for form, python in columns if form == "patched"]
    patched = f'<th scope="colgroup" colspan="{len(pythons)}">patched, for Python</th>' if pythons else ""
    overlay = '<th scope="col" rowspan="2">overlay</th>' if len(pythons) < len(columns) else ""
    below = "".join(f'<th scope="col">{python}</th>' for python in pythons)
    return f'<tr><th scope="col" rowspan="2">PyTorch</th>{overlay}{patched}</tr><tr>{below}</tr>'


def _legend(wheels: Sequence[Wheel]) -> str:
    marks = [(_CLASS[item], *item.value) for item in State if item is not State.FOREIGN]
    if any(item.yanked is not None for item in wheels):
        marks.append(_YANKED)
    rows = (
        f'<li><span class="mark {colour}" aria-hidden="true">{symbol}</span>{word}: {meaning}</li>'
        for colour, symbol, word, meaning in marks
    )
    return f'<ul class="legend">{"".join(rows)}</ul>'


def _column(item: Wheel) -> tuple[str, str]:
    return ("overlay" if item.form is Form.OVERLAY else "patched"), proofs.pythons(item)


def _for(python: str) -> str:
    return "every Python" if python == "any" else f"Python {python}"


def _row(release: str, wheels: Sequence[Wheel], columns: Sequence[tuple[str, str]]) -> str:
    cells = "".join(_cell([item for item in wheels if _column(item) == column]) for column in columns)
    about = ", ".join(sorted({str(item.contents.version) for item in wheels}))
    return f'<tr><th scope="row">{escape(release)}<small>{escape(about)}</small></th>{cells}</tr>'


def _cell(wheels: Sequence[Wheel]) -> str:
    if not wheels:
        return '<td class="none">&ndash;</td>'
    marks = []
    for item in wheels:
        found = proofs.state(item)
        colour, symbol, word = _CLASS[found], found.symbol, found.word
        if item.yanked is not None:
            colour, symbol, word, _ = _YANKED
        mark = f'<span class="mark" aria-hidden="true">{symbol}</span><span class="word">{word}</span>'
        marks.append(f'<a class="{colour}" href="#{_anchor(item)}">{mark}</a>')
    return f"<td>{'<br>'.join(marks)}</td>"


def _anchor(item: Wheel) -> str:
    return f"w{item.sha256[:12]}"


def _section(title: str, wheels: Sequence[Wheel], url: str) -> str:
    cards = "".join(_card(item, url) for item in wheels)
    return f'<h2>{escape(title)}</h2><div class="wheels">{cards}</div>'


def _card(item: Wheel, url: str) -> str:
    found = proofs.state(item)
    title = item.contents.project if item.form is Form.OTHER else item.form.value.capitalize()
    about = f"{_for(proofs.pythons(item))} · {item.platform} · {_size(item.size)}"
    yanked = (
        f'<p class="failed">Yanked: {escape(item.yanked or "no reason given")}</p>' if item.yanked is not None else ""
    )
    summary = f"<p>{escape(item.contents.summary)}</p>" if item.form is Form.OTHER else ""
    return (
        f'<article class="wheel{" yanked" if yanked else ""}" id="{_anchor(item)}"><header><h3>{escape(title)}</h3>'
        f'<span class="tag {_CLASS[found]}">{found.word}</span><small>{escape(about)}</small></header>'
        f'<p class="file"><a href="{simple.url(item)}"><code>{escape(item.name)}</code></a></p>{yanked}{summary}'
        f"{_command(item, url)}<dl class='proofs'>{_proofs(item)}</dl></article>"
    )


def _size(size: int) -> str:
    """Return bytes in words, with a space that does not break."""
    for unit, name in ((1e9, "GB"), (1e6, "MB")):
        if size >= unit / 10:
            return f"{size / unit:.{2 if name == 'GB' else 1}f}\xa0{name}"
    return f"{size / 1e3:.1f}\xa0kB"


def _command(item: Wheel, url: str) -> str:
    beside = f"'torch=={escape(_release(item))}' " if item.form is Form.OVERLAY else ""
    what = f"'{item.contents.project} @ {_base(url)}/{simple.url(item)}#sha256={item.sha256}'"
    return _box(f"pip install {beside}{what}")


def _proofs(item: Wheel) -> str:
    rows = [("SHA-256", f"<code>{item.sha256}</code>")]
    if item.made is not None:
        proven = item.made.provenance
        sources = f"commit <code>{proven.commit[:12]}</code>, from {escape(proven.source)}"
        patches = f"{len(proven.patches)}, series {', '.join(map(escape, proven.series))}"
        rows += [("Sources", sources), ("Patches", patches), ("Compiler", escape(proven.compiler))]
        rows += [("Checks", proofs.checks(item))]
        rows += [("Tests", "<br>".join(map(escape, proofs.tests(item))) or "not tested")]
    return "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in [*rows, ("Files", _links(item))])


def _links(item: Wheel) -> str:
    base = simple.url(item)
    links = [("METADATA", simple.METADATA)]
    if item.made is not None:
        links += [("provenance", SUFFIX), ("statement", STATEMENT)]
    return " · ".join(f'<a href="{base}{suffix}">{name}</a>' for name, suffix in links)


def _use(url: str) -> str:
    """Return how to use the index and how to check a wheel."""
    return (
        '<h2>Use it as an index</h2><p class="lead">pip and uv read <a href="simple/">simple/</a>; programs read '
        '<a href="wheelhouse.json">wheelhouse.json</a>. Name the version that you want in full.</p>'
        f"{_box(f'pip install --extra-index-url {_base(url)}/simple/ torch==VERSION')}"
        '<h2>Check a wheel</h2><p class="lead">With a checkout of this project: it checks every claim of the '
        f"provenance and builds the wheel again.</p>{_box('nox -s verify -- WHEEL')}"
    )


def _box(command: str) -> str:
    return f'<div class="command"><code>{command}</code></div>'


def _base(url: str) -> str:
    """Return the address of the wheelhouse as HTML; the script fills in one that is not known."""
    return escape(url.rstrip("/")) if url else '<span class="here">https://ADDRESS-OF-THIS-PAGE</span>'
