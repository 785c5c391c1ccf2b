"""Patches of a user for the release in miniature: written, built, explained and run."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from build import record
from build.wheels.archive import check_archive, check_digests
from tests.build.overlay import little as lt
from tests.build.pipeline import little_release as lr
from tests.build.pipeline.little_release import Place
from tests.build.series.repos import make_patch, make_repo

INIT = "torch/__init__.py"
AUTHOR = {
    f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in (("NAME", "a"), ("EMAIL", "a@b.c"))
}


def patch(place: Place, edits: Mapping[str, str | None]) -> Path:
    """Write a patch of a user that gives files new text, or removes them."""
    every = {path: (place.tree / path).read_bytes() for path in edits if (place.tree / path).is_file()}
    git = make_repo(Path(tempfile.mkdtemp(dir=place.folder)), {**every, "other": b""})
    made = make_patch(git, {path: None if new is None else new.encode() for path, new in edits.items()}, "a fix")
    target = place.folder / "own.patch"
    target.write_bytes(made)
    return target


def build(place: Place, *arguments: str | Path, label: str = "fix1") -> tuple[int, str]:
    own = ("--label", label, "--no-test", *arguments)
    return lr.command(place, "build", lt.VERSION, "--source", place.tree, "--dist", place.dist, *own)


def explain(place: Place, *arguments: str | Path) -> tuple[int, str]:
    return lr.command(place, "explain", "--release", lt.VERSION, "--source", place.tree, *arguments)


def made(place: Place, label: str = "fix1") -> tuple[record.BuildRecord, Path]:
    folder = place.dist / f"{lt.VERSION}-{label}"
    found = record.read(folder)
    assert found is not None
    return found, folder


def run(wheel: Path, site: Path, program: str) -> str:
    """Run a program on what a wheel holds."""
    check_archive(wheel)
    check_digests(wheel)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
