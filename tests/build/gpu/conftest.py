"""A package index of two wheels and a lock that names them: bundles are made in a second, without a network."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from build.gpu import bundle
from tests.build.official.server import Index, make_wheel, serving


def _own_pip() -> tuple[str, dict[str, bytes]]:
    """The pip of this Python, as the members of a wheel."""
    found = metadata.distribution("pip")
    files = [item for item in found.files or () if item.parts[0].startswith("pip") and item.suffix != ".pyc"]
    members = {item.as_posix(): Path(str(item.locate())).read_bytes() for item in files}
    record = f"pip-{found.version}.dist-info/RECORD"
    members[record] = "".join(f"{name},,\n" for name in members).encode()
    return found.version, members


def _little(version: str) -> dict[str, bytes]:
    info = f"left-{version}.dist-info"
    return {
        "left.py": f"VERSION = {version!r}\n".encode(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: left\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": f"left.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n".encode(),
    }


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as made:
        yield made


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, patch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index with pip and `left`, which pip asks and nothing else."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        patch.delenv(name)
    patch.setenv("PIP_CONFIG_FILE", os.devnull)
    patch.setenv("PIP_CACHE_DIR", str(tmp_path_factory.mktemp("pip-cache")))
    patch.setenv("PIP_RETRIES", "0")
    patch.setenv("NO_PROXY", "127.0.0.1")
    with serving(Index()) as made:
        patch.setenv("PIP_INDEX_URL", made.url + "/simple")
        yield made


@pytest.fixture(scope="module")
def lock(index: Index, tmp_path_factory: pytest.TempPathFactory, patch: pytest.MonkeyPatch) -> Path:
    """The lock that bundles are made from."""
    version, members = _own_pip()
    folder = tmp_path_factory.mktemp("lock")
    digests = {
        f"pip=={version}": index.add(f"pip-{version}-py3-none-any.whl", make_wheel(folder / "made.whl", members)),
        "left==1.0": index.add("left-1.0-py3-none-any.whl", make_wheel(folder / "made.whl", _little("1.0"))),
    }
    path = folder / "gpu.txt"
    path.write_text("".join(f"{name} \\\n    --hash=sha256:{digest}\n" for name, digest in digests.items()))
    patch.setattr(bundle, "LOCK", path)
    return path
