"""A package index of one wheel and a lock that names it: bundles are made in a second, without a network."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from build.gpu import bundle
from tests.build.official.server import Index, make_wheel, serving


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
    """An index with `left`, which uv asks and nothing else."""
    for name in [name for name in os.environ if name.startswith("UV_")]:
        patch.delenv(name)
    patch.setenv("UV_NO_CONFIG", "1")
    patch.setenv("UV_CACHE_DIR", str(tmp_path_factory.mktemp("uv-cache")))
    patch.setenv("NO_PROXY", "127.0.0.1")
    with serving(Index()) as made:
        patch.setenv("UV_DEFAULT_INDEX", made.url + "/simple")
        yield made


@pytest.fixture(scope="module")
def lock(index: Index, tmp_path_factory: pytest.TempPathFactory, patch: pytest.MonkeyPatch) -> Path:
    """The lock that bundles are made from; one line of it is for another Python."""
    folder = tmp_path_factory.mktemp("lock")
    digest = index.add("left-1.0-py3-none-any.whl", make_wheel(folder / "made.whl", _little("1.0")))
    path = folder / "gpu.txt"
    lines = [f"left==1.0 \\\n    --hash=sha256:{digest}", f"old==1.0 ; python_version < '3.10' --hash=sha256:{digest}"]
    path.write_text("\n".join(lines) + "\n")
    patch.setattr(bundle, "LOCK", path)
    return path
