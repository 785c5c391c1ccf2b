"""One row of the table: a patch, and what has to become of it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

ROWS = Path(__file__).with_name("rows")


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of `row.toml`; see the package for the meaning of each field."""

    kind: str
    outcome: Literal["behaves", "refused"]
    release: str = "2.6.0"
    arguments: tuple[str, ...] = ()
    stock: str = ""
    patched: str = ""
    reason: str = ""
    explain: Literal["", "refused"] = ""
    name: str = ""

    @property
    def folder(self) -> Path:
        return ROWS / self.name

    @property
    def patch(self) -> Path:
        return self.folder / "change.patch"


def load(name: str) -> Row:
    """Read a row.

    Raises:
        ValueError: it lacks what its outcome needs, or says what has no meaning for it.
    """
    row = msgspec.structs.replace(msgspec.toml.decode((ROWS / name / "row.toml").read_bytes(), type=Row), name=name)
    needs = {"behaves": (row.stock, row.patched), "refused": (row.reason,)}[row.outcome]
    if not all(needs) or (row.outcome == "behaves" and row.stock == row.patched):
        raise ValueError(f"{name}: outcome {row.outcome} needs its fields, and another output than stock's")
    if (row.folder / "show.py").is_file() != (row.outcome == "behaves"):
        raise ValueError(f"{name}: show.py belongs to a row that behaves")
    return row


def names() -> list[str]:
    """Return the names of all rows, sorted."""
    return sorted(path.parent.name for path in ROWS.glob("*/row.toml"))
