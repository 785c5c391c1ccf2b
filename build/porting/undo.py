"""What a series had for a release before a port, so that giving the port up brings it back."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec

from build.errors import UsageError
from build.paths import atomic_write
from build.porting.registry import remove_entry, write_entry
from build.porting.session import discard
from build.seals import signed, unsigned
from build.series import manifest as manifests
from build.series.commits import Exported, write_series
from build.series.manifest import ReleaseEntry

_NAME = "before.json"


class Before(msgspec.Struct, frozen=True):
    """The files of a release's folder (None: it had no folder), and its entry in the manifest (None: it had none)."""

    files: dict[str, bytes] | None
    entry: ReleaseEntry | None


def remember(folder: Path, release: str) -> Before:
    """Return what the series in `folder` has for `release`."""
    target = folder / release
    files = {path.name: path.read_bytes() for path in target.iterdir()} if target.is_dir() else None
    return Before(files, manifests.load(folder).release.get(release))


def keep(before: Before, state: Path) -> None:
    """Store `before` with a port that waits, unless an earlier run has."""
    if state.is_dir() and not (state / _NAME).exists():
        with atomic_write(state / _NAME) as part:
            part.write_bytes(signed(msgspec.json.encode(before)))


def give_up(folder: Path, release: str, state: Path) -> None:
    """Forget a port that waits, and bring back what the series had.

    Raises:
        UsageError: none waits, or what it had is not known.
    """
    kept = state / _NAME
    if not os.path.lexists(kept):
        discard(state)  # says that none waits; a port that was interrupted before it wrote anything is forgotten
        return
    try:
        before = msgspec.json.decode(unsigned(kept.read_bytes()) or b"", type=Before)
    except (OSError, msgspec.DecodeError):
        raise UsageError(f"{kept} is damaged", remedy=f"remove {state} and look at {folder} with git") from None
    if before.entry is None:
        remove_entry(folder, release)
    else:
        write_entry(folder, release, before.entry)
    if before.files is None:
        shutil.rmtree(folder / release, ignore_errors=True)
    else:
        write_series(folder / release, [Exported(name, data) for name, data in before.files.items()])
    discard(state)
