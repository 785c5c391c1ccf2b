"""`python3 noxfile.py` on a machine without nox."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from build import bootstrap
from build.paths import REPO

_RUN = """
import sys
from pathlib import Path
from build import bootstrap
{more}
sys.argv[1:] = ["-s", "lint"]
sys.exit(bootstrap.run_again_with_nox(Path({repo!r})))
"""
#: An environment whose Python only says how it was called.
_FAKE = """
def make(folder, requirements):
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text('#!/bin/sh\\necho "$@"; echo "$PATH"; exit 42\\n')
    python.chmod(0o755)
bootstrap._make = make
"""


def run(cache: Path, more: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    code = _RUN.format(more=more, repo=str(REPO))
    own = {"PYTHONPATH": str(REPO), "MULTIWORLD_CACHE": str(cache)}
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **own, **env},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_nox_takes_the_process_over(tmp_path: Path) -> None:
    done = run(tmp_path, _FAKE)
    assert done.returncode == 42, done.stderr
    called, path = done.stdout.splitlines()[-2:]
    assert called == f"-m nox -f {REPO / 'noxfile.py'} -s lint"
    assert path.startswith(str(tmp_path / "nox"))
    again = run(tmp_path, "def never(*_): raise SystemExit('made twice')\nbootstrap._make = never\n")
    assert again.returncode == 42, again.stderr


def test_an_environment_that_cannot_be_made(tmp_path: Path) -> None:
    """An index without nox: said in words, and the next run tries again."""
    env = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
    done = run(tmp_path, **env)
    assert done.returncode == 5
    assert "error: no environment for nox could be made" in done.stderr
    assert "to do:" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.glob("nox/*/ready")) == []
    assert run(tmp_path, _FAKE).returncode == 42


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(tmp_path / "file")
    assert done.returncode == 5
    assert "Traceback" not in done.stderr


def test_an_old_python(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))
    assert bootstrap.run_again_with_nox(REPO) == 5
    assert "Python 3.10 or newer" in capsys.readouterr().err
