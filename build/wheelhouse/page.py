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
        yanked=any(item.yanked is not None for item in wheels),
        files=(("METADATA", METADATA), ("provenance", SUFFIX), ("statement", STATEMENT)),
        simple=simple,
        page=sys.modules[__name__],
    )


def _python(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")) if version != "any" else (99,)


def column(item: Wheel) -> tuple[str, str]:
    return ("overlay" if item.form is Form.OVERLAY else "patched"), pythons(item)


def pythons(item: Wheel) -> str:
    """Return for which Python a wheel is, e.g. `3.11`, or `any`, also for the stable ABI."""
    tag, abi = item.contents.tags.split("-")[:2]
    return f"{tag[2]}.{tag[3:]}" if tag.startswith("cp3") and len(tag) > 3 and abi != "abi3" else "any"
