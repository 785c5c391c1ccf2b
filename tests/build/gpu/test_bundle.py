"""A bundle: one file with the same bytes each time, which runs in an empty folder, without an index."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from build.errors import EnvironmentUnfitError, NoDeviceError, WheelError
from build.gpu import bundle
from build.paths import REPO
from tests.build.official.server import Index, make_wheel

pytestmark = pytest.mark.usefixtures("lock")
THIS = ".".join(platform.python_version_tuple()[:2])
SECONDS = 240
_PASSES = "import left, pytest\n@pytest.mark.gpu\ndef test_left():\n    assert left.VERSION == '1.0'\n"


@pytest.fixture(scope="module")
def made(lock: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert lock.is_file()
    final = tmp_path_factory.mktemp("made") / "gpu.zip"
    bundle.make(final, THIS, None)
    return final


@pytest.fixture
def unpacked(made: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "a folder"
    subprocess.run([sys.executable, "-m", "zipfile", "-e", made, folder], check=True, timeout=SECONDS)
    return folder


def run(program: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the program of a bundle with no device, no index and, where allowed, no network."""
    command = [sys.executable, str(program), *map(str, arguments)]
    alone = ["unshare", "--net", "--map-root-user"]
    if shutil.which("unshare") and not subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        command = [*alone, *command]
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "OUT")}
    # Without a compiler: the rows that would need the engine are skipped, and `hatch_build.py` has tests of its own.
    env = {**own, "CUDA_VISIBLE_DEVICES": "", "CXX": "no-compiler"}
    return subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, timeout=SECONDS, check=False)


def test_the_same_input_gives_the_same_bytes(made: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.zip"
    os.utime(REPO / "LICENSE")
    bundle.make(again, THIS, None)
    assert hashlib.sha256(made.read_bytes()).digest() == hashlib.sha256(again.read_bytes()).digest()


def test_what_is_in_it(made: Path) -> None:
    with zipfile.ZipFile(made) as archive:
        names = archive.namelist()
        manifest = json.loads(archive.read("bundle.json"))
        assert archive.read("checkout/LICENSE") == (REPO / "LICENSE").read_bytes()
    assert {"run.py", "packages/left.py", "checkout/multiworld/__init__.py", "checkout/hatch_build.py"} <= set(names)
    assert not [name for name in names if "__pycache__" in name or ".git/" in name or name.endswith(".so")]
    assert manifest["python"] == THIS
    assert len(manifest["commit"]) == 40
    assert manifest["packages"] == ["left-1.0"]


def test_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MOST", 1000)
    with pytest.raises(WheelError, match="MB, more than 0 MB") as caught:
        bundle.make(tmp_path / "gpu.zip", THIS, None)
    assert "left" in caught.value.cause
    assert not list(tmp_path.glob("*.zip")) + list(tmp_path.glob(".*.part"))


def test_an_overlay_wheel_is_packed(tmp_path: Path) -> None:
    overlay = tmp_path / "multiworld_torch_overlay-1.whl"
    overlay.write_bytes(make_wheel(tmp_path / "made.whl", {"overlay.pth": b"import left\n"}))
    made = bundle.make(tmp_path / "gpu.zip", THIS, overlay)
    assert made["overlay"].startswith(overlay.name)
    with zipfile.ZipFile(tmp_path / "gpu.zip") as archive:
        assert archive.read("packages/overlay.pth") == b"import left\n"


def test_a_wheel_with_another_hash_is_refused(
    index: Index, lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    digest = re.findall("sha256:([0-9a-f]+)", lock.read_text())[0]
    monkeypatch.setattr(bundle, "LOCK", tmp_path / "gpu.txt")
    bundle.LOCK.write_text(lock.read_text().replace(digest, "0" * 64))
    assert index.files
    with pytest.raises(EnvironmentUnfitError, match=f"the packages for Python {THIS} could not be made") as caught:
        bundle.make(tmp_path / "gpu.zip", THIS, None)
    assert "hash" in caught.value.cause.lower()


def test_markers_are_those_of_the_other_python(lock: Path, tmp_path: Path) -> None:
    """The line of `old` holds for Python 3.9, for which the index has no such wheel."""
    assert lock.is_file()
    bundle.install("3.12", tmp_path)
    with pytest.raises(EnvironmentUnfitError, match=r"for Python 3\.9 could not be made") as caught:
        bundle.install("3.9", tmp_path)
    assert "old" in caught.value.cause


def test_it_needs_nothing_of_the_tooling_to_begin(unpacked: Path) -> None:
    command = [sys.executable, "-I", "-S", str(unpacked / "run.py"), "--help"]  # without the packages of this Python
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "--out" in done.stdout


@pytest.mark.slow
def test_it_runs_without_network_and_says_that_nothing_is_shown(unpacked: Path, tmp_path: Path) -> None:
    """A row passes there, with a wheel that only the bundle has; its own rows are skipped loudly without a device."""
    pytest.importorskip("torch", reason="the bundle runs on top of a Python that has torch")
    (tmp_path / "test_row.py").write_text(_PASSES)
    own = "tests/multiworld/faults/test_recovery.py"
    done = run(unpacked / "run.py", "--out", tmp_path / "out", tmp_path / "test_row.py", own)
    assert done.returncode == NoDeviceError.exit_code, done.stdout + done.stderr
    assert "NO NVIDIA DEVICE" in done.stdout
    assert "no CUDA device here; nothing about it is shown" in done.stdout
    assert "error: NoDeviceError: there is no NVIDIA device, so nothing about one is shown" in done.stderr
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert (result["passed"], result["failed"]) == (1, 0)
    assert result["skipped"] > 0
    assert result["facts"]["devices"] == []
    assert result["facts"]["date"]
    files = {"facts.json", "gpu.xml", "pytest.log", "result.json"}
    assert {item.name for item in (tmp_path / "out").iterdir()} == files


def test_another_python_than_the_wheels_are_for(unpacked: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the bundle runs on top of a Python that has torch")
    manifest = json.loads((unpacked / "bundle.json").read_text())
    (unpacked / "bundle.json").write_text(json.dumps({**manifest, "python": "3.99"}))
    done = run(unpacked / "run.py", "--out", tmp_path / "out")
    assert done.returncode == 5
    assert "the bundle is for Python 3.99" in done.stderr
    assert "Traceback" not in done.stderr
