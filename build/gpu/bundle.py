"""One file with all that the tests on a device need and a machine with Python and a CUDA torch lacks."""

from __future__ import annotations

import json
import os
import platform
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from build.errors import WheelError, reading
from build.git import Git
from build.gpu.run import MANIFEST, PACKAGES
from build.paths import REPO, atomic_write, sweep
from build.process import uv_run
from build.seals import sha256_of
from build.wheels.archive import write_member

SCHEMA = 2
#: Bytes that a bundle may have: what a machine without network is sent is limited, too.
MOST = 64_000_000
LOCK = REPO / "locks" / "gpu.txt"
#: The newest system that wheels are chosen for: that of the machines to be served.
_SYSTEM = "manylinux_2_39"
_START = '''"""Run the tests of this bundle on this machine's NVIDIA device; `--help` tells the arguments."""

import sys
from pathlib import Path

if sys.version_info < (3, 10):
    sys.exit("error: Python 3.10 or newer is needed")
sys.path.insert(0, str(Path(__file__).resolve().parent / "checkout"))

from build.gpu.run import main

sys.exit(main())
'''


def make(final: Path, python: str, overlay: Path | None) -> dict[str, Any]:
    """Write a bundle, and return its manifest; the same checkout, lock and overlay give the same bytes.

    Args:
        final: the file, a zip archive; replaced if it is there.
        python: CPython version of the other machine, e.g. "3.12".
        overlay: an overlay wheel to install there, made for its torch.

    Raises:
        EnvironmentUnfitError: no index in reach, no wheel for that Python, or a wheel with another hash.
        WheelError: the bundle is larger than `MOST`, or the overlay wheel is damaged.
    """
    with tempfile.TemporaryDirectory(prefix="multiworld-bundle-") as scratch:
        packages = Path(scratch)
        install(python, packages)
        if overlay is not None:
            with reading(overlay.name), zipfile.ZipFile(overlay) as archive:
                archive.extractall(packages)
        git = Git(REPO)
        modified = git.out("diff", "--name-only", "-z", "HEAD").split(b"\0")[:-1]
        manifest = {
            "schema": SCHEMA,
            "python": python,
            "commit": git.line("rev-parse", "HEAD"),
            "modified": sorted(map(os.fsdecode, modified)),  # differ from the commit, and are packed as they are
            "packages": sorted(path.stem for path in packages.glob("*.dist-info")),  # e.g. `pytest-9.0.1`
            "overlay": f"{overlay.name} sha256:{sha256_of(overlay)}" if overlay else "",
        }
        sweep(final)
        with atomic_write(final) as part:
            _write(part, manifest, packages)
            _check_size(part, packages)
    return manifest


def install(python: str, packages: Path) -> None:
    """Install what the lock has for another Python into a folder: uv evaluates markers for that one."""
    other = ("--python-version", python, "--python-platform", f"{platform.machine()}-{_SYSTEM}")
    what = ("--target", packages, "--only-binary", ":all:", "--require-hashes", "--no-deps", "-r", LOCK)
    uv_run(f"the packages for Python {python}", "pip", "install", "--quiet", *other, *what)


def _write(path: Path, manifest: dict[str, Any], packages: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        write_member(archive, "run.py", _START.encode(), 0o755)
        write_member(archive, MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode())
        for name, file in (*_tracked(), *_installed(packages)):
            write_member(archive, name, file.read_bytes(), 0o755 if os.access(file, os.X_OK) else 0o644)


def _tracked() -> Iterator[tuple[str, Path]]:
    """Yield the tracked files of the checkout that are there, as they are now."""
    for record in sorted(Git(REPO).out("ls-files", "-z").split(b"\0")[:-1]):
        name = os.fsdecode(record)
        if (REPO / name).is_file():
            yield f"checkout/{name}", REPO / name


def _installed(packages: Path) -> Iterator[tuple[str, Path]]:
    """Yield the installed files, without the programs, which name the Python that installed them."""
    for file in sorted(packages.rglob("*")):
        name = file.relative_to(packages)
        if file.is_file() and name.parts[0] not in ("bin", ".lock"):
            yield f"{PACKAGES}/{name}", file


def _check_size(path: Path, packages: Path) -> None:
    size = path.stat().st_size
    if size < MOST:
        return
    files = {top.name: [file for file in (top, *top.rglob("*")) if file.is_file()] for top in packages.iterdir()}
    sizes = Counter({name: sum(file.stat().st_size for file in inside) for name, inside in files.items()})
    largest = ", ".join(f"{name} ({size / 1e6:.1f} MB)" for name, size in sizes.most_common(3))
    what = f"the bundle has {size / 1e6:.1f} MB, more than {MOST / 1e6:.0f} MB"
    remedy = "drop a requirement of the group `gpu` in pyproject.toml that the tests do without"
    raise WheelError(what, cause=f"the largest packages: {largest}", remedy=remedy)
