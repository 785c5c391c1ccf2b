"""A mirror has all that its wheels require: pip and uv install from it alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from build import cli
from build.errors import EnvironmentUnfitError
from build.wheelhouse.publish import Request, publish
from build.wheels.archive import WheelWriter
from docs.bench.wheelhouse import write_release
from tests.build.official.settings import forget
from tests.build.wheelhouse.conftest import served
from tests.build.wheelhouse.test_install import OWN, installed, pip, python, uv_pip

__all__ = ["python"]


#: For this Python and every later one; what is for every one has no other.
ABI3 = "cp310-abi3-manylinux_2_17_x86_64"


def write(folder: Path, name: str, *more: str, tags: str = "py3-none-any") -> None:
    """Write a wheel, version 1.0, with more lines in its METADATA."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-1.0.dist-info"
    with WheelWriter(folder / f"{name}-1.0-{tags}.whl", info) as writer:
        lines = [f"Name: {name}", "Version: 1.0", *more]
        writer.add(f"{info}/METADATA", "\n".join(["Metadata-Version: 2.4", *lines, ""]).encode())
        writer.add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tags}\n".encode())


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """A release, and a package of its own, which require what is not here."""
    write_release(tmp_path / "dist" / "9.1.0", "9.1.0", (OWN,))
    need = ["Requires-Dist: torch", "Requires-Dist: near", "Provides-Extra: more"]
    write(tmp_path / "dist" / "own", "own", *need, "Requires-Dist: extra; extra == 'more'", tags=ABI3)
    return tmp_path / "dist"


def mirror(dist: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Make the mirror where the package index is at `url`."""
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "UV_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    settings = {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": url, "UV_DEFAULT_INDEX": url, "NO_PROXY": "127.0.0.1"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    forget()
    return cli.main(["wheelhouse", "--dist", str(dist), "--mirror"])


@pytest.mark.parametrize("install", [pip, uv_pip])
def test_it_needs_no_other_index(
    install: Callable[..., object], dist: Path, tmp_path: Path, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "index", "near", "Requires-Dist: far>=1")
    write(tmp_path / "index", "far", tags="py3-none-manylinux2014_x86_64")
    write(tmp_path / "index", "far", tags="py3-none-win_amd64")
    write(tmp_path / "index", "extra")
    write(tmp_path / "index", "torch")
    publish(Request((tmp_path / "index",), tmp_path / "others"))
    with served(tmp_path / "others") as (url, _):
        assert mirror(dist, f"{url}/simple/", monkeypatch) == 0
    there = {path.name.partition("-")[0] for path in (dist / "mirror").iterdir()}
    assert there == {"near", "far", "extra", "torch"}  # the overlay is for a torch of the index
    assert [path.name for path in (dist / "wheelhouse" / "files").glob("far-*.whl")] == [
        "far-1.0-py3-none-manylinux2014_x86_64.whl"
    ]
    with served(dist / "wheelhouse") as (url, _):
        install(python, "--index-url", f"{url}/simple/", "own[more]", "torch==9.1.0+cu124.mw1")
    assert installed(python) == {"own==1.0", "near==1.0", "far==1.0", "extra==1.0", "torch==9.1.0+cu124.mw1"}
    # Without `--mirror` it is as it was.
    assert cli.main(["wheelhouse", "--dist", str(dist)]) == 0
    assert not list((dist / "wheelhouse" / "files").glob("far-*"))


def test_what_is_not_there(
    dist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "index", "torch")
    publish(Request((tmp_path / "index",), tmp_path / "others"))
    with served(tmp_path / "others") as (url, _):
        assert mirror(dist, f"{url}/simple/", monkeypatch) == EnvironmentUnfitError.exit_code
    said = capsys.readouterr().err
    assert "could not be made" in said
    assert "Because near was not found" in said
    assert not (dist / "wheelhouse").exists()
