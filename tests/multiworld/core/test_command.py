"""The ``multiworld`` command as a user starts it: ``python -m multiworld``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from multiworld import MultiWorld
from multiworld.observe.status_file import StatusFile

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
    done = run("-X", "importtime", "-m", "multiworld", "top", "--once", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert not [line for line in done.stderr.splitlines() if line.split()[-1:] == ["torch"]], "it takes seconds"
    assert "from multiworld.observe.status_file import StatusFile" in done.stdout
    assert f'StatusFile(mw, "{tmp_path}")' in done.stdout.replace("\n", "")


def test_top_without_its_folder_and_its_help_say_so_too(tmp_path: Path) -> None:
    pytest.importorskip("typer", reason="the cli extra is not installed")
    done = run("-m", "multiworld", "top", str(tmp_path / "none"))
    assert done.returncode == 2
    assert "StatusFile(mw," in done.stderr.replace("\n", "")
    assert "StatusFile(mw, FOLDER)" in run("-m", "multiworld", "top", "--help").stdout


def test_top_prints_into_a_pipe(tmp_path: Path) -> None:
    """Each interval anew, and quietly no more once the reader has gone."""
    pytest.importorskip("typer", reason="the cli extra is not installed")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    with MultiWorld() as mw:
        mw.sync.join("seen", 0, 1, store=f"file://{tmp_path}/store")
        with StatusFile(mw, tmp_path / "status"):
            command = [sys.executable, "-m", "multiworld", "top", "--interval", "0.1", str(tmp_path / "status")]
            top = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            try:
                assert top.stdout is not None
                assert top.stderr is not None
                seen = 0
                while seen < 4:  # in the table of worlds and in that of events, which knows the join before it, twice
                    line = top.stdout.readline()
                    assert line, top.stderr.read()
                    seen += "seen" in line
                top.stdout.close()
                top.wait(60)
                assert top.stderr.read() == ""
            finally:
                top.kill()
                top.wait()


def test_top_shows_a_process_that_writes_its_status(tmp_path: Path) -> None:
    pytest.importorskip("typer", reason="the cli extra is not installed")
    from multiworld.observe.status_file import StatusFile

    with MultiWorld() as mw, StatusFile(mw, tmp_path):
        shown = run("-m", "multiworld", "top", "--once", str(tmp_path)).stdout
    assert str(os.getpid()) in shown
    assert "import StatusFile" not in shown
