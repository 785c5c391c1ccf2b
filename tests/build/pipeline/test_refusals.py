"""A build that is refused touches nothing of the last one, and the true cause is said before anything is fetched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from build import process
from build.errors import EnvironmentUnfitError
from build.overlay import toolchain
from build.paths import REPO
from tests.build.overlay.little import Little
from tests.build.pipeline import little_release as lr
from tests.build.pipeline.test_bootstrap import run
from tests.build.with_nox import PYTHON


def test_the_last_good_log_stays(little: Little, tmp_path: Path) -> None:
    place = lr.make(little, tmp_path)
    status, output = lr.build(place, CXX="/nonexistent")
    assert status == 5
    assert "CXX=/nonexistent is not a program" in output
    assert not place.results.exists(), "a build that was refused leaves an empty folder"
    assert lr.build(place)[0] == 0
    log = (place.results / "build.log").read_bytes()
    assert lr.build(place, CXX="/nonexistent")[0] == 5
    assert (place.results / "build.log").read_bytes() == log


@pytest.mark.parametrize(("command", "option"), [("build", "--dist"), ("apply", "--into")])
def test_a_release_without_patches_is_refused_before_anything_is_fetched(
    command: str, option: str, tmp_path: Path
) -> None:
    env = {**os.environ, "PYTHONPATH": str(REPO), "MULTIWORLD_CACHE": str(tmp_path / "cache")}
    env |= {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull}
    env |= {"MULTIWORLD_UPSTREAM": "http://127.0.0.1:9/pytorch.git"}
    done = subprocess.run(
        [sys.executable, "-m", "build", command, "2.9.1", option, tmp_path / "dist"],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 8, done.stdout + done.stderr
    assert "no series of patches is ported to PyTorch 2.9.1" in done.stdout + done.stderr
    assert not (tmp_path / "dist").exists()


def test_a_full_disk_is_not_the_compilers_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIWORLD_CACHE", str(tmp_path / "cache"))
    script = tmp_path / "g++"
    script.write_text("#!/bin/sh\necho 'fatal error: error writing to /tmp/x.s: No space left on device' >&2\nexit 1\n")
    script.chmod(0o755)
    with pytest.raises(EnvironmentUnfitError, match="the disk is full") as caught:
        toolchain.run_compiler([script], timeout=60)
    assert "TMPDIR" in caught.value.remedy


def test_a_full_disk_is_not_the_indexs_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although uv says it at the end of a list of causes, and the remedy of the caller is about names and versions."""
    script = tmp_path / "uv"
    script.write_text(
        "#!/bin/sh\nprintf 'error: failed\\n  cause: No space left on device (os error 28)\\n' >&2\nexit 2\n"
    )
    script.chmod(0o755)
    monkeypatch.setattr("uv.find_uv_bin", lambda: str(script))
    with pytest.raises(EnvironmentUnfitError, match="the disk is full: uv cannot write") as caught:
        process.uv_run("the lock", "pip", "compile", remedy="check name and version")
    assert "UV_CACHE_DIR" in caught.value.remedy
    assert "os error 28" in caught.value.cause


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(tmp_path / "file")
    assert done.returncode == 5
    assert "MULTIWORLD_CACHE" in done.stderr
    assert "venv" not in done.stderr


@pytest.mark.usefixtures("nox_is_here")
def test_the_noxfile_alone_lists_its_sessions() -> None:
    """It does not lint, test and fetch torch for one who only looked."""
    done = subprocess.run(
        [PYTHON, "-m", "nox", "-f", REPO / "noxfile.py"],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "- build-2.6.0" in done.stdout
    assert "Running session" not in done.stdout + done.stderr
