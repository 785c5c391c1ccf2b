"""`python3 noxfile.py` on a machine without nox."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from build import bootstrap, cli
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
    assert called == "noxfile.py -s lint"
    assert path.startswith(str(tmp_path / "nox"))
    again = run(tmp_path, "def never(*_): raise SystemExit('made twice')\nbootstrap._make = never\n")
    assert again.returncode == 42, again.stderr


def test_an_environment_that_cannot_be_made(tmp_path: Path) -> None:
    """An index without nox: said in words, and the next run tries again."""
    env = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
    done = run(tmp_path, **env)
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


SESSIONS = ["lint", "tests", "patches", "build-2.6.0", "test-2.6.0", "build-2.15.0", "test-2.15.0"]
_ASK = f"""
import json, sys
from nox._options import options
from build.bootstrap import advice
print(json.dumps([advice(line, {SESSIONS}, options.parser()) for line in json.load(sys.stdin)]))
"""


def advised(*lines: str) -> list[str]:
    """Ask for several command lines at once, in the Python that has nox."""
    asked = json.dumps([shlex.split(line) for line in lines])
    done = subprocess.run(
        [PYTHON, "-c", _ASK], cwd=REPO, input=asked, capture_output=True, text=True, timeout=60, check=True
    )
    found: list[str] = json.loads(done.stdout)
    return found


WRONG = {
    "-s buld-2.6.0": ["there is no session buld-2.6.0", "python3 noxfile.py -s build-2.6.0"],
    "-s lnt tests": ["there is no session lnt", "-s lint"],
    "--session xyzzy": ["there is no session xyzzy", "python3 noxfile.py -l"],
    "-s build-2.6.1": ["PyTorch 2.6.1 is not", "2.6.0, 2.15.0", "-s build-2.6.0\n", "regenerate-patch -- 2.6.1"],
    "-s build-2.6.0x": ["PyTorch 2.6.0x is not", "2.6.0, 2.15.0\nto do:\n  python3 noxfile.py -s build-2.6.0"],
    "-s test-2.7.0rc1": ["PyTorch 2.7.0rc1 is not", "-s test-2.6.0"],
    "-s build-2.5.1": ["-s build-2.6.0\n"],
    "build-2.6.0": ["a session is named with -s\nto do:\n  python3 noxfile.py -s build-2.6.0"],
    "build-2.6.0 -- --no-test": ["  python3 noxfile.py -s build-2.6.0 -- --no-test"],
    "build-2.6.0 --no-test": ["goes behind --", "noxfile.py -s build-2.6.0 -- --no-test"],
    "buld-2.6.0": ["there is no session buld-2.6.0", "python3 noxfile.py -s build-2.6.0"],
    "-s build-2.6.0 --no-test": ["goes behind --", "noxfile.py -s build-2.6.0 -- --no-test"],
    "-s patches --html x.html": ["--html is an argument of the session", "-s patches -- --html x.html"],
    "-r -s tests -v --torch=2.6.0 x.py": ["--torch=2.6.0 is", "noxfile.py -r -s tests -v -- --torch=2.6.0 x.py"],
    "-s lint overlay": ["overlay is no session", "noxfile.py -s lint -- overlay"],
    "-s lint x.whl --html 'a b'": ["x.whl is no session", "noxfile.py -s lint -- x.whl --html 'a b'"],
    "-r -s lint x.whl -- --html h": ["noxfile.py -r -s lint -- x.whl --html h"],
    "-s lint tets --html h": ["there is no session tets", "python3 noxfile.py -s tests"],
    "-s build-2.6.0 --python 3.12 -- --no-test": ["noxfile.py -s build-2.6.0 -- --python 3.12 --no-test"],
    "-rs build-2.6.0 --no-test": ["goes behind --", "noxfile.py -rs build-2.6.0 -- --no-test"],
    "-e patches --html x": ["goes behind --", "noxfile.py -e patches -- --html x"],
    "-spatches --html x": ["noxfile.py -spatches -- --html x"],
    "--sessions=patches --html=x": ["noxfile.py --sessions=patches -- --html=x"],
    "--sessions=buld-2.6.0": ["there is no session buld-2.6.0"],
    "-rs build-2.6.1": ["PyTorch 2.6.1 is not", "-s build-2.6.0\n"],
    "-s lint --json f": ["--json is an argument", "noxfile.py -s lint -- --json f"],
    "-s lint --json=f": ["noxfile.py -s lint -- --json=f"],
    "-s lint -R x": ["x is no session", "noxfile.py -s lint -R -- x"],
}


@pytest.mark.usefixtures("nox_is_here")
def test_what_nox_would_refuse_without_a_hint() -> None:
    for (line, said), found in zip(WRONG.items(), advised(*WRONG), strict=True):
        assert all(text in found for text in said), (line, found)
    assert "regenerate-patch" not in advised("-s build-2.6.0x")[0], "a number with letters is not ported"


@pytest.mark.usefixtures("nox_is_here")
def test_every_option_of_a_session_goes_behind_the_dashes() -> None:
    commands = typer.main.get_command(cli._app("")).commands.values()  # type: ignore[attr-defined]
    options = {name for command in commands for item in command.params for name in (*item.opts, *item.secondary_opts)}
    named = sorted(name for name in options if name.startswith("--"))
    found = advised(*(f"-s build-2.6.0 {name}" for name in named))
    assert [name for name, said in zip(named, found, strict=True) if f"{name} is an argument" not in said] == []


@pytest.mark.usefixtures("nox_is_here")
def test_what_nox_takes() -> None:
    lines = ["", "-l", "-l --json", "-s lint tests", "-s build-2.6.0 -- --no-test", "-r -s lint -v"]
    lines += ["-rs lint -- --json", "-k lint", "-s lint --force-color", "--no-such-option"]
    assert advised(*lines) == [""] * len(lines)


@pytest.mark.usefixtures("nox_is_here")
def test_a_session_without_its_option() -> None:
    """nox itself would print its usage, without what is missing."""
    done = subprocess.run(
        [PYTHON, "noxfile.py", "build-2.6.0"],
        cwd=REPO, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: a session is named with -s\nto do:\n  python3 noxfile.py -s build-2.6.0\n"


@pytest.mark.usefixtures("nox_is_here")
def test_any_folder_will_do(tmp_path: Path) -> None:
    done = subprocess.run(
        [PYTHON, REPO / "noxfile.py", "-l"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert "build-2.6.0" in done.stdout


@pytest.mark.usefixtures("nox_is_here")
@pytest.mark.parametrize("command", [["-m", "nox", "-f", "noxfile.py"], ["noxfile.py"]])
def test_a_typo_with_nox_installed(command: list[str]) -> None:
    done = subprocess.run(
        [PYTHON, *command, "-s", "buld-2.6.0"],
        cwd=REPO, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "there is no session buld-2.6.0\nto do:\n  python3 noxfile.py -s build-2.6.0" in done.stderr
    assert "Traceback" not in done.stderr
