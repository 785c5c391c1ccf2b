"""The command line: exit codes, messages in three parts, and no traceback for what users or machines do."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from build import cli, errors
from build.errors import ToolError
from build.paths import REPO

EVERY = [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, ToolError)]


def raising(error: BaseException) -> Callable[[str], Callable[..., None]]:
    def command(*_: object, **__: object) -> None:
        raise error

    return lambda _: command


def test_every_error_has_an_exit_code_of_its_own() -> None:
    codes = [item.exit_code for item in EVERY]
    assert len(EVERY) >= 15
    assert len(set(codes)) == len(codes)
    assert not {0, cli.EXIT_INTERRUPTED} & set(codes)


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: str(kind.__name__))
def test_an_error_is_shown_in_three_parts(
    kind: type[ToolError], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "_app", raising(kind("it [b]broke[/]", cause="rain\nand wind", remedy="wait")))
    assert cli.main([]) == kind.exit_code
    shown = capsys.readouterr().err
    assert shown == f"error: {kind.__name__}: it [b]broke[/]\ncause:\n  rain\n  and wind\nto do:\n  wait\n"


def test_interrupted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli, "_app", raising(KeyboardInterrupt()))
    assert cli.main([]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_command_that_did_not_end(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli, "_app", raising(subprocess.TimeoutExpired(["nm"], 5)))
    assert cli.main([]) == 1
    assert "did not end in 5 s: nm" in capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_what_the_machine_refuses(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import os

    monkeypatch.setattr(cli, "_app", raising(OSError(number, os.strerror(number), "/some/where")))
    assert cli.main([]) == 5
    shown = capsys.readouterr().err
    assert f"{os.strerror(number)}: /some/where" in shown
    assert "to do:" in shown


@pytest.mark.parametrize("error", [OSError(errno.EBADF, "bad"), ZeroDivisionError()])
def test_a_mistake_of_ours_is_not_hidden(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "_app", raising(error))
    with pytest.raises(type(error)):
        cli.main([])


def call(*arguments: str, cwd: Path = REPO) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "build", *arguments], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def test_an_unknown_release_names_the_nearest_first(tmp_path: Path) -> None:
    status, shown = call("build", "2.6.1", "--dist", str(tmp_path))
    assert status == 3
    assert "release '2.6.1' is not known" in shown
    listed = shown.partition("nearest first: ")[2].replace("\n", " ").split(", ")
    assert listed[0] == "2.6.0"
    assert "2.2.1" in shown
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["build"], "Missing argument"),
        (["build", "2.6.0", "--no-such-option"], "No such option"),
        (["build", "2.6.0", "--patches", "a", "--patches=b"], "--patches is given twice"),
        (["build", "2.6.0", "--include", "no-such-folder"], "no-such-folder"),
        (["wheelhouse", "--days", "0"], "--days"),
        (["regenerate-patch", "2.9.1", "--continue"], "no port waits"),
        (["no-such-command"], "No such command"),
    ],
)
def test_usage(arguments: list[str], said: str) -> None:
    status, shown = call(*arguments)
    assert status == 2
    assert said in shown


def test_help_lists_the_commands() -> None:
    status, shown = call("--help")
    assert status == 0
    assert all(name in shown for name in ("apply", "build", "lint-patches", "test"))


def test_nothing_was_built_yet(tmp_path: Path) -> None:
    status, shown = call("test", "2.6.0", "--dist", str(tmp_path))
    assert status == 2
    assert "holds no wheels to test" in shown
    assert "nox -s build-2.6.0" in shown
