"""What the stock wheel did in its tests, kept in the cache: it does the same again until one of these changes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from build import paths, seals
from build.record import BuildRecord
from build.wheeltest.environments import Form
from build.wheeltest.results import Run

#: The harness with its catalogue, and the tests.
_DECIDING = (paths.REPO / "gpuless", paths.TESTS / "gpuless", paths.TESTS / "wheel")


def _place(made: BuildRecord) -> Path:
    """Return the file of the record, named by all that decides the results."""
    digest = hashlib.sha256(repr((made.official.sha256, made.python, made.replaced)).encode())
    for path in sorted(path for folder in _DECIDING for path in folder.rglob("*")):
        if path.suffix in (".py", ".c", ".h", ".json"):
            digest.update(f"{path.relative_to(paths.REPO)}\0{seals.sha256_of(path)}\n".encode())
    return paths.cache("stock") / f"{digest.hexdigest()[:32]}.json"


def read(made: BuildRecord) -> list[Run]:
    """Return the recorded runs on the stock wheel of a build, none when there is no record of them."""
    try:
        data = seals.unsigned(_place(made).read_bytes())
        runs = msgspec.json.decode(data or b"[]", type=list[Run])
    except (OSError, msgspec.DecodeError):
        return []
    return [msgspec.structs.replace(run, recorded=True) for run in runs]


def write(made: BuildRecord, runs: Sequence[Run]) -> None:
    """Record those of `runs` that are on stock, if it did all that it should."""
    stock = [run for run in runs if run.form == Form.STOCK.value]
    if stock and all(run.green for run in stock):
        with paths.atomic_write(_place(made)) as part:
            part.write_bytes(seals.signed(msgspec.json.encode(stock)))
