"""Environments for tests: made from wheel files, with dependencies of an index, and gone afterwards."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from pathlib import Path

import pytest

from build.paths import cache
from build.wheeltest.environments import Form, environment
from tests.build.official.server import make_wheel

PYTHON = ".".join(platform.python_version_tuple()[:2])


def wheel(folder: Path, name: str, requires: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-1.0.dist-info"
    members = {
        f"{name}.py": f"HERE = '{name}'\n".encode(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{requires}".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    members[f"{info}/RECORD"] = "".join(f"{member},,\n" for member in (*members, f"{info}/RECORD")).encode()
    path = folder / f"{name}-1.0-py3-none-any.whl"
    make_wheel(path, members)
    return path


def names(files: Iterable[Path]) -> set[str]:
    return {path.name for path in files}


def test_of_a_wheel_that_was_built_here_nothing_stays_in_uvs_cache(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    wheel(tmp_path / "index", "dependency")
    built = wheel(tmp_path / "dist", "patched", "Requires-Dist: dependency\n")
    official = wheel(cache("wheels", "0123"), "official")
    with environment(Form.PATCHED, PYTHON, [built, official]) as python:
        found = {path.name: path for path in python.parents[1].rglob("*.py") if path.parent.name == "site-packages"}
        assert {"patched.py", "dependency.py", "official.py"} <= found.keys()
        assert found["dependency.py"].stat().st_nlink > 1, "uv's cache has it, and links it"
        assert names((tmp_path / "uv").rglob("*.py")) >= {"dependency.py", "official.py"}
        assert "patched.py" not in names((tmp_path / "uv").rglob("*.py"))
        assert names(python.parents[2].iterdir()) == {".lock", "venv"}
    assert names((own_cache / "environments").iterdir()) == {"environments.lock"}
