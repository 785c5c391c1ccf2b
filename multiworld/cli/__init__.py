"""The ``multiworld`` command: doctor, bench, chaos, top."""

from __future__ import annotations

import sys
from pathlib import Path

from multiworld.compat import conflict
from multiworld.errors import INSTALL

_NEEDED = ("typer", "rich")


def main() -> None:
    """Run the command line; says what to install where the extra ``cli`` is missing."""
    _check_package()
    try:
        from multiworld.cli.app import app
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] not in _NEEDED:
            raise
        sys.stderr.write(
            f"multiworld: the command line needs {missing.name}, which is not installed\n"
            "  likely cause: torch-multiworld was installed without its extra 'cli'\n"
            f"  what to do: {INSTALL.format(extra='[cli]')}\n"
        )
        sys.exit(2)
    app()


def _check_package() -> None:
    """Say so where the package around this module is pymultiworld, installed over ours: its start does not."""
    import multiworld

    if not hasattr(multiworld, "MultiWorldError"):
        sys.stderr.write(f"multiworld: {conflict.mixed(str(Path(__file__).parent.parent))}\n")
        sys.exit(2)
