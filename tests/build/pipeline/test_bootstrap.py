"""`python3 noxfile.py` on a machine without nox."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from build import bootstrap
from build.paths import REPO
from tests.build.with_nox import PYTHON

_RUN = """
import sys
from pathlib import Path
from build import bootstrap
{more}
sys.exit(bootstrap.run_in_environment(Path({repo!r}), "nox", ["noxfile.py", "-s", "lint"]))
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


#: A Python whose environments borrow its pip: to give them one of their own takes seconds.
_BORROWS = """#!/bin/sh
[ "$2" = venv ] && exec '{python}' -m venv --system-site-packages --without-pip "$3"
exec '{python}' "$@"
"""


def run(cache: Path, more: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    code = _RUN.format(more=more, repo=str(REPO))
    own = {"PYTHONPATH": str(REPO), "MULTIWORLD_CACHE": str(cache)}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **own, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_nox_takes_the_process_over(tmp_path: Path) -> None:
    done = run(tmp_path, _FAKE)
    assert done.returncode == 42, done.stderr
    called, path = done.stdout.splitlines()[-2:]
    assert called == "noxfile.py -s lint"
    assert path.startswith(str(tmp_path / "nox"))
    again = run(tmp_path, "def never(*_): raise SystemExit('made twice')\nbootstrap._make = never\n")
    assert again.returncode == 42, again.stderr


def test_an_environment_that_cannot_be_made(tmp_path: Path) -> None:
    """An index without nox: said in words, and the next run tries again."""
    python = tmp_path / "python"
    python.write_text(_BORROWS.format(python=sys.executable))
    python.chmod(0o755)
    env = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
    done = run(tmp_path, f"sys.executable = {str(python)!r}", **env)
    assert done.returncode == 5
    assert "error: the environment for nox could not be made" in done.stderr
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
    assert bootstrap.run_in_environment(REPO, "nox", []) == 5
    assert "Python 3.10 or newer" in capsys.readouterr().err


@pytest.mark.usefixtures("nox_is_here")
def test_any_folder_will_do(tmp_path: Path) -> None:
    done = subprocess.run(
        [PYTHON, REPO / "noxfile.py", "-l"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert "build-2.6.0" in done.stdout


@pytest.mark.usefixtures("nox_is_here")
@pytest.mark.parametrize(
    "line", ["-s buld-2.6.0", "build-2.6.0", "-s build-2.6.0 --no-test", "-s build-2.6.0 --python 3"]
)
def test_a_wrong_line_is_one_error_of_nox(line: str) -> None:
    command = [PYTHON, "noxfile.py", *line.split()]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in {2, 3}
    assert "Traceback" not in done.stderr
