"""The front page of the wheelhouse: releases, wheels and their proofs, with the command that installs each.

One HTML file that loads nothing; its script fills in the page's own address and copies commands.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from packaging.version import Version

from build.pages import render
from build.wheelhouse import proofs, simple
from build.wheelhouse.attestation import STATEMENT, SUFFIX
from build.wheelhouse.model import Form, Wheel
from build.wheelhouse.proofs import State

_CLASSES = {State.PROVEN: "proven", State.BUILT: "built", State.FAILED: "failed", State.FOREIGN: "none"}
#: What the table shows of a yanked wheel instead of its state: colour, symbol, word, meaning.
_YANKED = ("failed", "⊘", "yanked", "installed only where its version is pinned; the reason is with the wheel")
_FILES = (("METADATA", simple.METADATA), ("provenance", SUFFIX), ("statement", STATEMENT))


def page(wheels: Sequence[Wheel], signed_by: str, url: str) -> str:
    """Return the HTML.

    Args:
        signed_by: who signs the provenance, e.g. `key 1f2e…`; empty for nobody.
        url: where the wheelhouse is served; empty: the script fills in where it is found.
    """
    made = [item for item in wheels if item.made is not None]
    releases = sorted({_release(item) for item in made}, key=Version, reverse=True)
    marks = [(_CLASSES[item], *item.value) for item in State if item is not State.FOREIGN]
    if any(item.yanked is not None for item in wheels):
        marks.append(_YANKED)
    return render(
        "wheelhouse.html",
        wheels=wheels,
        releases={name: _of(made, name) for name in releases},
        others=[item for item in wheels if item.made is None],
        url=url,
        signed_by=signed_by,
        signer=" ".join(word if len(word) < 20 else f"{word[:16]}…" for word in signed_by.split()),
        # The overlay, then the newest Python first: what a narrow window cuts off is old.
        columns=sorted(
            {_column(item) for item in made}, key=lambda c: (c[0] == "overlay", _python(c[1])), reverse=True
        ),
        column=_column,
        marks=marks,
        yanked=_YANKED,
        classes=_CLASSES,
        proofs=proofs,
        simple=simple,
        files=_FILES,
    )


def _release(item: Wheel) -> str:
    return item.made.provenance.release if item.made else ""


def _of(wheels: Iterable[Wheel], release: str) -> list[Wheel]:
    """Return the wheels of a release: patched ones first, by Python."""
    found = [item for item in wheels if _release(item) == release]
    return sorted(found, key=lambda item: (item.form is Form.OVERLAY, _python(proofs.pythons(item)), item.name))


def _python(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")) if version != "any" else (99,)


def _column(item: Wheel) -> tuple[str, str]:
    return ("overlay" if item.form is Form.OVERLAY else "patched"), proofs.pythons(item)
