"""Detect pymultiworld in the same folder: its distribution and its package are both called ``multiworld``.

The one installed last owns the files that both have; uninstalling either removes them from the other.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from pathlib import Path

from multiworld.errors import INSTALL

#: names of pymultiworld that neither this package nor a user has
_THEIRS = ("threadsafe_async.py", "init.txt", "patch")
REMEDY = (
    f"pip uninstall -y multiworld torch-multiworld, then {INSTALL.format(extra='')}; pymultiworld changed files of "
    "torch as well: pip install --force-reinstall --no-deps torch==VERSION brings them back"
)


def traces(folder: str) -> list[str]:
    """Return what pymultiworld has left in ``folder``, the folder of this package, and next to it."""
    place = Path(folder)
    found = [name for name in _THEIRS if (place / name).exists()]
    # Not torch_multiworld-…, which is ours, nor multiworld_torch_overlay-…, a package of its own.
    start, end = "multiworld-", ".dist-info"
    # A zip archive has no folder: no installer puts two packages into one.
    with contextlib.suppress(OSError), os.scandir(place.parent) as siblings:  # names only: a site-packages has hundreds
        found += sorted(item.name for item in siblings if item.name.startswith(start) and item.name.endswith(end))
    return found


def warn(folder: str) -> None:
    """Warn if pymultiworld and this package are installed over each other; takes a fraction of a millisecond."""
    if found := traces(folder):
        warnings.warn(
            f"pymultiworld and torch-multiworld are both installed in {Path(folder).parent} ({', '.join(found)}): "
            f"each has files under the same names, and removing one breaks the other.\n  what to do: {REMEDY}",
            RuntimeWarning,
            stacklevel=3,
        )


def mixed(folder: str) -> str:
    """The message for a package whose files are partly pymultiworld's."""
    return (
        f"the package in {folder} is a mixture of torch-multiworld and pymultiworld, and works as neither\n"
        "  likely cause: the distributions 'multiworld' (pymultiworld) and 'torch-multiworld' share a folder\n"
        f"  what to do: {REMEDY}"
    )
