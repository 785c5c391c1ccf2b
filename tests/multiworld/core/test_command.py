"""The ``multiworld`` command as a user starts it: ``python -m multiworld``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from multiworld import MultiWorld

ROOT = Path(__file__).resolve().parents[3]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_package_can_be_run() -> None:
    pytest.importorskip("typer", reason="the cli extra is not installed")
    done = run("-m", "multiworld", "--help")
    assert done.returncode == 0, done.stderr
    assert "doctor" in done.stdout
    assert "top" in done.stdout


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_its_extra_it_says_what_to_install(missing: str) -> None:
    program = f"import runpy, sys; sys.modules[{missing!r}] = None; runpy.run_module('multiworld', run_name='__main__')"
    done = run("-c", program)
    assert done.returncode == 2
    assert f"needs {missing}" in done.stderr
    assert "pip install '.[cli]' in a checkout" in done.stderr
    assert "pip install --find-links WHEELHOUSE 'torch-multiworld[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_top_of_an_empty_folder_says_what_to_add_to_the_program(tmp_path: Path) -> None:
    pytest.importorskip("typer", reason="the cli extra is not installed")
    done = run("-m", "multiworld", "top", "--once", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "from multiworld.cli.status import StatusFile" in done.stdout
    assert f'StatusFile(mw, "{tmp_path}")' in done.stdout.replace("\n", "")


def test_top_without_its_folder_and_its_help_say_so_too(tmp_path: Path) -> None:
    pytest.importorskip("typer", reason="the cli extra is not installed")
    done = run("-m", "multiworld", "top", str(tmp_path / "none"))
    assert done.returncode == 2
    assert "StatusFile(mw," in done.stderr.replace("\n", "")
    assert "StatusFile(mw, FOLDER)" in run("-m", "multiworld", "top", "--help").stdout


def test_top_shows_a_process_that_writes_its_status(tmp_path: Path) -> None:
    pytest.importorskip("typer", reason="the cli extra is not installed")
    from multiworld.cli.status import StatusFile

    with MultiWorld() as mw, StatusFile(mw, tmp_path):
        shown = run("-m", "multiworld", "top", "--once", str(tmp_path)).stdout
    assert str(os.getpid()) in shown
    assert "import StatusFile" not in shown
