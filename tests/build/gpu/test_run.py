"""The run on a device: which Python it takes, and what counts as shown."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from build.errors import NoDeviceError, ProbeError, UsageError
from build.gpu import run
from build.paths import REPO

DEVICE = {"devices": [{"name": "one"}], "no_device": ""}
NONE = {"devices": [], "no_device": "a build without CUDA"}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python of its own, without packages."""
    folder = tmp_path_factory.mktemp("bare")
    venv.EnvBuilder().create(folder)
    return folder


@pytest.fixture(scope="module")
def with_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has something called torch, and nothing else."""
    folder = tmp_path_factory.mktemp("torch")
    venv.EnvBuilder().create(folder)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "torch.py").write_text("raise ImportError('libcuda.so.1: cannot open shared object file')\n")
    return folder


def test_a_python_without_torch_is_refused_by_name(bare: Path) -> None:
    with pytest.raises(UsageError, match="has no torch"):
        run.find(bare / "bin" / "python")


def test_the_first_python_on_path_that_has_torch(bare: Path, with_torch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(bare / "bin" / "python"))
    monkeypatch.setenv("PATH", os.pathsep.join(f"{folder}/bin" for folder in ("/nowhere", bare, with_torch)))
    found = run.find(None)
    assert found.path.parent == with_torch / "bin"
    assert set(found.missing) == set(run.NEEDED)


def test_outside_of_a_bundle_nothing_is_installed(with_torch: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "build.gpu.run", "--python", with_torch / "bin" / "python", "--out", tmp_path],
        cwd=REPO,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 5
    assert "lacks pytest, pytest_timeout" in done.stderr
    assert "nox -s gpu -- --bundle" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("status", "counts", "facts", "error"),
    [
        (0, (3, 0, 1), DEVICE, None),
        (1, (3, 1, 0), DEVICE, ProbeError),
        (1, (3, 1, 0), NONE, ProbeError),
        (2, (3, 0, 0), DEVICE, ProbeError),  # interrupted: what was not run is not shown
        (0, (0, 0, 4), DEVICE, NoDeviceError),
        (5, (0, 0, 0), DEVICE, NoDeviceError),
        (0, (0, 0, 4), NONE, NoDeviceError),
        (0, (2, 0, 0), NONE, NoDeviceError),
    ],
)
def test_what_counts_as_shown(
    status: int, counts: tuple[int, int, int], facts: dict[str, object], error: type[Exception] | None
) -> None:
    tally = run.Tally(*counts, {"a reason": 1})
    if error is None:
        run.judge(status, tally, facts)
        return
    with pytest.raises(error):
        run.judge(status, tally, facts)


def test_outcomes_are_those_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "def test_passes(): pass\n"
        "def test_fails(): assert False\n"
        "def test_skips(): pytest.skip('no device')\n"
        "@pytest.fixture\n"
        "def broken(): raise OSError\n"
        "def test_error(broken): pass\n"
    )
    junit = tmp_path / "out.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={junit}", "test_it.py"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=120, check=False)
    assert run.counted(junit) == run.Tally(1, 2, 1, {"no device": 1})
    assert run.counted(tmp_path / "missing.xml") == run.Tally(0, 0, 0, {})
