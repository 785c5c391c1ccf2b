"""`python3 noxfile.py` on a machine without nox."""

from __future__ import annotations

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
sys.argv[1:] = ["-s", "lint", *sys.argv[1:]]
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


def run(cache: Path, more: str = "", *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    code = _RUN.format(more=more, repo=str(REPO))
    own = {"PYTHONPATH": str(REPO), "MULTIWORLD_CACHE": str(cache)}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env={**os.environ, **own, **env},
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
    assert bootstrap.run_again_with_nox(REPO) == 5
    assert "Python 3.10 or newer" in capsys.readouterr().err


SESSIONS = ["lint", "tests", "patches", "build-2.6.0", "test-2.6.0", "build-2.15.0", "test-2.15.0"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("-s buld-2.6.0", ["there is no session buld-2.6.0", "python3 noxfile.py -s build-2.6.0"]),
        ("-s lnt tests", ["there is no session lnt", "-s lint"]),
        ("--session xyzzy", ["there is no session xyzzy", "python3 noxfile.py -l"]),
        ("-s build-2.6.1", ["PyTorch 2.6.1 is not", "2.6.0, 2.15.0", "-s build-2.6.0\n", "regenerate-patch -- 2.6.1"]),
        ("-s build-2.6.0x", ["PyTorch 2.6.0x is not", "2.6.0, 2.15.0\nto do:\n  python3 noxfile.py -s build-2.6.0"]),
        ("-s test-2.7.0rc1", ["PyTorch 2.7.0rc1 is not", "-s test-2.6.0"]),
        ("-s build-2.5.1", ["-s build-2.6.0\n"]),
        ("build-2.6.0", ["a session is named with -s\nto do:\n  python3 noxfile.py -s build-2.6.0"]),
        ("build-2.6.0 -- --no-test", ["  python3 noxfile.py -s build-2.6.0 -- --no-test"]),
        ("build-2.6.0 --no-test", ["goes behind --", "noxfile.py -s build-2.6.0 -- --no-test"]),
        ("buld-2.6.0", ["there is no session buld-2.6.0", "python3 noxfile.py -s build-2.6.0"]),
        ("-s build-2.6.0 --no-test", ["goes behind --", "noxfile.py -s build-2.6.0 -- --no-test"]),
        ("-s patches --html x.html", ["--html is an argument of the session", "-s patches -- --html x.html"]),
        ("-r -s tests -v --torch=2.6.0 x.py", ["--torch=2.6.0 is", "noxfile.py -r -s tests -v -- --torch=2.6.0 x.py"]),
        ("-s lint overlay", ["overlay is no session", "noxfile.py -s lint -- overlay"]),
        ("-s lint x.whl --html 'a b'", ["x.whl is no session", "noxfile.py -s lint -- x.whl --html 'a b'"]),
        ("-r -s lint x.whl -- --html h", ["noxfile.py -r -s lint -- x.whl --html h"]),
        ("-s lint tets --html h", ["there is no session tets", "python3 noxfile.py -s tests"]),
        ("-s build-2.6.0 --python 3.12 -- --no-test", ["noxfile.py -s build-2.6.0 -- --python 3.12 --no-test"]),
    ],
)
def test_what_nox_would_refuse_without_a_hint(arguments: str, said: list[str]) -> None:
    found = bootstrap.advice(shlex.split(arguments), SESSIONS)
    assert all(text in found for text in said), found


def test_every_option_of_a_session_goes_behind_the_dashes() -> None:
    commands = typer.main.get_command(cli._app("")).commands.values()  # type: ignore[attr-defined]
    options = {name for command in commands for item in command.params for name in (*item.opts, *item.secondary_opts)}
    found = {name for name in options if f"{name} is an argument" in bootstrap.advice(["-s", "build-2.6.0", name])}
    assert found == {name for name in options if name.startswith("--")} - {"--json"}, "--json is an option of nox, too"


@pytest.mark.usefixtures("nox_is_here")
def test_the_options_of_nox_are_known() -> None:
    code = "from nox._options import options; print(*(o for a in options.parser()._actions for o in a.option_strings))"
    options = subprocess.run(
        [PYTHON, "-c", code], capture_output=True, text=True, timeout=60, check=True
    ).stdout.split()
    assert "--session" in options
    wrong = {name for name in options if bootstrap.advice(["-s", "lint", name])}
    assert wrong == {"--python"}, "what nox takes is refused"


@pytest.mark.parametrize("arguments", ["", "-l", "-s lint tests", "-s build-2.6.0 -- --no-test", "-r -s lint -v"])
def test_what_nox_takes(arguments: str) -> None:
    assert bootstrap.advice(arguments.split(), SESSIONS) == ""
    assert bootstrap.advice(arguments.split()) == ""


def test_misplaced_arguments_are_told_before_anything_is_made(tmp_path: Path) -> None:
    done = run(tmp_path, "", "--no-test")
    assert (done.returncode, list(tmp_path.iterdir())) == (2, []), done.stderr


@pytest.mark.usefixtures("nox_is_here")
def test_a_session_without_its_option() -> None:
    """nox itself would print its usage, without what is missing."""
    done = subprocess.run(
        [PYTHON, "noxfile.py", "build-2.6.0"],
        cwd=REPO, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: a session is named with -s\nto do:\n  python3 noxfile.py -s build-2.6.0\n"


def test_without_nox_the_option_is_asked_for_before_anything_is_made(tmp_path: Path) -> None:
    code = _RUN.replace('["-s", "lint", *sys.argv[1:]]', '["lint"]').format(more="", repo=str(REPO))
    env = {**os.environ, "PYTHONPATH": str(REPO), "MULTIWORLD_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, list(tmp_path.iterdir())) == (2, []), done.stderr
    assert "python3 noxfile.py -s lint\n" in done.stderr


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


def test_a_number_with_letters_is_not_ported() -> None:
    assert "regenerate-patch" not in bootstrap.advice(["-s", "build-2.6.0x"], SESSIONS)
