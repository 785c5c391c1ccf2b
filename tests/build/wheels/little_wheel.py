"""The official wheel of the miniature: a zip with everything zips have that a careless copy trips over."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import shutil
import subprocess
import venv as venv_module
import zipfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import msgspec

from build.overlay.build import build_overlay
from build.overlay.model import Overlay
from build.releases import Release
from build.seals import sha256_of
from tests.build.overlay import little as lt
from tests.build.overlay.little import Little

INFO = f"torch-{lt.VERSION}.dist-info"
TAG = f"cp{lt.PYTHON.replace('.', '')}"
NAME = f"torch-{lt.VERSION}-{TAG}-{TAG}-manylinux1_x86_64.whl"
DIST_INFO = {
    "METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {lt.VERSION}\nSummary: small\n\nVersion: not this\n",
    "WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: {TAG}-{TAG}-linux_x86_64\n",
    "LICENSE": "the licence of PyTorch\n",
    "NOTICE": "its notice\n",
}
#: What goes into the dist-info of each wheel.
DOCUMENTS = {"multiworld.json": b"{}\n", "sboms/multiworld.cdx.json": b'{"bomFormat": "CycloneDX"}\n'}


def record_line(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow([name, f"sha256={digest}", len(data)])
    return line.getvalue()


def members(little: Little, dist_info: Mapping[str, str] = DIST_INFO) -> dict[str, bytes]:
    files = [path for path in sorted(little.wheel.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    found = {path.relative_to(little.wheel).as_posix(): path.read_bytes() for path in files}
    found |= {"torch/share/a, b.txt": b"a name with a comma\n", "torch/share/empty": b""}
    return found | {f"{INFO}/{name}": text.encode() for name, text in dist_info.items()}


class _Pipe(io.BytesIO):
    """Output that cannot be sought: zipfile then writes sizes behind the data, as some wheel builders do."""

    def seekable(self) -> bool:
        return False

    def seek(self, *_: object) -> int:
        raise io.UnsupportedOperation

    def tell(self) -> int:
        raise io.UnsupportedOperation


def write_wheel(path: Path, content: Mapping[str, bytes], record: str | None = None) -> Path:
    """Write a wheel, members stored and deflated in turn, each with its sizes behind the data."""
    out = _Pipe()
    lines = [*(record_line(name, data) for name, data in content.items()), f"{INFO}/RECORD,,"]
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(zipfile.ZipInfo("torch/", (2020, 2, 2, 2, 2, 2)), b"")
        for index, (name, data) in enumerate(content.items()):
            info = zipfile.ZipInfo(name, (2020, 2, 2, 2, 2, 2))
            info.compress_type = zipfile.ZIP_STORED if index % 2 else zipfile.ZIP_DEFLATED
            info.external_attr = (0o100755 if ".so" in name else 0o100644) << 16
            archive.writestr(info, data, compresslevel=1)
        archive.writestr(zipfile.ZipInfo(f"{INFO}/RECORD"), record if record is not None else "\n".join(lines) + "\n")
    path.write_bytes(out.getvalue())
    return path


def official(little: Little, folder: Path) -> tuple[Path, Release]:
    """Return the wheel, and the release that pins it."""
    path = write_wheel(folder / NAME, members(little))
    wheel = msgspec.structs.replace(little.release.wheel, sha256={lt.PYTHON: sha256_of(path)})
    return path, msgspec.structs.replace(little.release, wheel=wheel)


def make_overlay(little: Little, folder: Path) -> Overlay:
    """An overlay that adds 99 to the answer."""
    edit = lt.edited(lt.NCCL_CPP, "return 1 +", "return 100 +")
    return build_overlay(lt.inputs(little, folder / "tree", edit), folder / "out")


def venv(folder: Path) -> Path:
    """Make an environment with a copy of this Python's pip, faster than ensurepip; return its Python."""
    venv_module.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for top in {item.parts[0] for item in metadata.distribution("pip").files or () if item.parts[0] != ".."}:
        shutil.copytree(str(metadata.distribution("pip").locate_file(top)), site / top)
    return folder / "bin" / "python"


def clean() -> dict[str, str]:
    """Return an environment in which neither pip nor uv finds settings, caches or networks."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return kept | {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "UV_OFFLINE": "1", "UV_NO_CONFIG": "1"}


def call(*command: str | Path, timeout: float = 120) -> str:
    done = subprocess.run(command, env=clean(), cwd="/", capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
