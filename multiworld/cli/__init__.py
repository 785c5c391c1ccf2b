"""The ``multiworld`` command: doctor, bench, chaos, top."""

from __future__ import annotations

import sys

_NEEDED = ("typer", "rich")


def main() -> None:
    """Run the command line; says what to install where the extra ``cli`` is missing."""
    try:
        from multiworld.cli.app import app
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] not in _NEEDED:
            raise
        sys.stderr.write(
            f"multiworld: the command line needs {missing.name}, which is not installed\n"
            "  likely cause: multiworld was installed without its extra 'cli'\n"
            "  what to do: pip install 'multiworld[cli]'\n"
        )
        sys.exit(2)
    app()
