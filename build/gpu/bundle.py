"""One file with all that the tests on a device need and a machine with Python and a CUDA torch lacks."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from build.errors import WheelError
from build.git import Git
from build.gpu import wheels
from build.gpu.run import MANIFEST
from build.paths import REPO, atomic_write, sweep
from build.seals import sha256_of
from build.wheels.archive import EPOCH

SCHEMA = 1
#: Bytes that a bundle may have: what a machine without network is sent is limited, too.
MOST = 64_000_000
LOCK = REPO / "locks" / "gpu.txt"
_START = '''"""Run the tests of this bundle on this machine's NVIDIA device; `--help` tells the arguments."""

import sys
from pathlib import Path

if sys.version_info < (3, 10):
    sys.exit("error: Python 3.10 or newer is needed")
sys.path.insert(0, str(Path(__file__).resolve().parent / "checkout"))

from build.gpu.run import main

sys.exit(main())
'''


@dataclass(frozen=True, slots=True)
class Packed:
    """A file of a bundle."""

    name: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a bundle.

    Attributes:
        schema: raised when a field changes its meaning.
        python: the CPython version that the wheels are for.
        commit: of the checkout.
        modified: tracked files that differ from that commit; they are packed as they are.
        wheels: the wheels.
        overlay: the name of the overlay wheel among them; empty for none.
    """

    schema: int
    python: str
    commit: str
    modified: tuple[str, ...]
    wheels: tuple[Packed, ...]
    overlay: str


def make(final: Path, python: str, overlay: Path | None) -> Manifest:
    """Write a bundle; the same checkout, lock and overlay give the same bytes.

    Args:
        final: the file, a zip archive; replaced if it is there.
        python: CPython version of the other machine, e.g. "3.12".
        overlay: an overlay wheel to install there, made for its torch.

    Raises:
        EnvironmentUnfitError: the wheels cannot be downloaded.
        WheelError: the bundle is larger than `MOST`.
    """
    lines = wheels.requirements(LOCK.read_text(encoding="utf-8"), python)
    with tempfile.TemporaryDirectory(prefix="multiworld-bundle-") as scratch:
        folder = Path(scratch)
        wheels.download(lines, python, folder)
        found = sorted(folder.glob("*.whl"))
        if overlay is not None:
            found.append(overlay)
            lines.append(_requirement(overlay))
        manifest = _manifest(python, found, overlay)
        sweep(final)
        with atomic_write(final) as part:
            _write(part, manifest, lines, found)
            _check_size(part, found)
    return manifest


def _requirement(wheel: Path) -> str:
    name, version, *_ = wheel.name.split("-")
    return f"{name}=={version} --hash=sha256:{sha256_of(wheel)}"


def _manifest(python: str, found: list[Path], overlay: Path | None) -> Manifest:
    packed = tuple(Packed(path.name, sha256_of(path), path.stat().st_size) for path in found)
    git = Git(REPO)
    modified = git.out("diff", "--name-only", "-z", "HEAD").split(b"\0")[:-1]
    names = tuple(sorted(map(os.fsdecode, modified)))
    return Manifest(SCHEMA, python, git.line("rev-parse", "HEAD"), names, packed, overlay.name if overlay else "")


def _write(path: Path, manifest: Manifest, lines: list[str], found: list[Path]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        _add(archive, "run.py", _START.encode(), 0o755)
        _add(archive, MANIFEST, (json.dumps(asdict(manifest), indent=2) + "\n").encode())
        _add(archive, "requirements.txt", ("\n".join(lines) + "\n").encode())
        for name, file in _tracked():
            _add(archive, f"checkout/{name}", file.read_bytes(), 0o755 if os.access(file, os.X_OK) else 0o644)
        for wheel in found:
            _add(archive, f"wheels/{wheel.name}", wheel.read_bytes(), method=zipfile.ZIP_STORED)


def _tracked() -> Iterator[tuple[str, Path]]:
    """Yield the tracked files of the checkout that are there, as they are now."""
    for record in sorted(Git(REPO).out("ls-files", "-z").split(b"\0")[:-1]):
        name = os.fsdecode(record)
        if (REPO / name).is_file():
            yield name, REPO / name


def _add(
    archive: zipfile.ZipFile, name: str, data: bytes, mode: int = 0o644, method: int = zipfile.ZIP_DEFLATED
) -> None:
    info = zipfile.ZipInfo(name, EPOCH)
    info.compress_type = method
    info.external_attr = (0o100000 | mode) << 16
    archive.writestr(info, data, compresslevel=9)


def _check_size(path: Path, found: list[Path]) -> None:
    size = path.stat().st_size
    if size < MOST:
        return
    largest = sorted(found, key=lambda wheel: wheel.stat().st_size, reverse=True)[:3]
    raise WheelError(
        f"the bundle has {size / 1e6:.1f} MB, more than {MOST / 1e6:.0f} MB",
        cause="the largest wheels: "
        + ", ".join(f"{item.name} ({item.stat().st_size / 1e6:.1f} MB)" for item in largest),
        remedy="drop a requirement of the group `gpu` in pyproject.toml that the tests do without",
    )
