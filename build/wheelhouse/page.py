"""The front page of the wheelhouse: releases, wheels and their proofs, with the command that installs each.

One HTML file that loads nothing; its script fills in the page's own address and copies commands.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from packaging.version import Version

from build.pages import render
from build.wheelhouse import simple
from build.wheelhouse.attestation import STATEMENT, SUFFIX
from build.wheelhouse.model import Form, Wheel
from build.wheelhouse.trust import METADATA
from build.wheeltest import environments

#: States of a wheel's proof: colour, symbol, word and meaning.
PROVEN = ("proven", "●", "proven", "its tests passed on exactly these bytes")
BUILT = ("built", "◐", "built", "it passed the checks of its build; no test result is known")
FAILED = ("failed", "✕", "failed", "its tests failed, or those of the wheel built with it")
FOREIGN = ("none", "○", "no record", "not built here: only its own RECORD was checked")
#: What the table shows of a yanked wheel instead of its state.
YANKED = ("failed", "⊘", "yanked", "installed only where its version is pinned; the reason is with the wheel")
FILES = (("METADATA", METADATA), ("provenance", SUFFIX), ("statement", STATEMENT))


def page(wheels: Sequence[Wheel], signed_by: str, url: str) -> str:
    """Return the HTML.

    Args:
        signed_by: who signs the provenance, e.g. `key 1f2e…`; empty for nobody.
        url: where the wheelhouse is served; empty: the script fills in where it is found.
    """
    made = [item for item in wheels if item.made is not None]
    # Patched ones first, by Python.
    ordered = sorted(made, key=lambda item: (item.form is Form.OVERLAY, _python(pythons(item)), item.name))
    releases = sorted({item.release for item in made}, key=Version, reverse=True)
    return render(
        "wheelhouse.html",
        wheels=wheels,
        releases={name: [item for item in ordered if item.release == name] for name in releases},
        others=[item for item in wheels if item.made is None],
        url=url,
        signed_by=signed_by,
        signer=" ".join(word if len(word) < 20 else f"{word[:16]}…" for word in signed_by.split()),
        # The overlay, then the newest Python first: what a narrow window cuts off is old.
        columns=sorted({column(item) for item in made}, key=lambda c: (c[0] == "overlay", _python(c[1])), reverse=True),
        marks=[PROVEN, BUILT, FAILED, *([YANKED] if any(item.yanked is not None for item in wheels) else [])],
        simple=simple,
        page=sys.modules[__name__],
    )


def _python(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")) if version != "any" else (99,)


def column(item: Wheel) -> tuple[str, str]:
    return ("overlay" if item.form is Form.OVERLAY else "patched"), pythons(item)


def mark(item: Wheel) -> tuple[str, str, str, str]:
    if item.made is None:
        return FOREIGN
    if not item.tests:
        return BUILT
    return PROVEN if all(result.proven for result in item.tests) else FAILED


def pythons(item: Wheel) -> str:
    """Return for which Python a wheel is, e.g. `3.11`, or `any`, also for the stable ABI."""
    tag, abi = item.contents.tags.split("-")[:2]
    return f"{tag[2]}.{tag[3:]}" if tag.startswith("cp3") and len(tag) > 3 and abi != "abi3" else "any"


def tests(item: Wheel) -> tuple[str, ...]:
    """Return a line per Python on which a wheel was tested: what ran on this form of it."""
    form = environments.Form.PATCHED if item.form is Form.PATCHED else environments.Form.OVERLAY
    lines = []
    for result in item.tests:
        runs = [run for run in result.runs if run.form == form.value]
        counted = [f"{run.suite} {run.counts.get('passed', 0)} passed{_failed(run.counts)}" for run in runs]
        lines.append(f"Python {result.python}: {'; '.join(counted) or 'nothing ran'}")
    return tuple(lines)


def _failed(counts: dict[str, int]) -> str:
    kinds = ("failed", "failed as expected", "skipped")
    return "".join(f", {counts[kind]} {kind}" for kind in kinds if counts.get(kind))
