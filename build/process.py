"""Run one external command: shown, logged, bounded in time."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from build.console import log
from build.errors import EnvironmentUnfitError

_live: set[subprocess.Popen[bytes]] = set()
_GRACE = 10.0


@dataclass(frozen=True, slots=True)
class Completed:
    """What a command returned: `stdout` and `stderr` are bytes, since patches and symbols are bytes."""

    command: tuple[str, ...]
    returncode: int
    stdout: bytes
    stderr: bytes

    @property
    def tail(self) -> str:
        """The last lines of the error output, for a message to a person."""
        lines = (self.stderr or self.stdout).decode("utf-8", "replace").strip().splitlines()
        return "\n".join(lines[-25:])


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    timeout: float = 1800.0,
) -> Completed:
    """Run `command` and return its result whatever its exit status.

    Args:
        command: program and arguments; never a shell line.
        cwd: working folder, default the current one.
        env: variables set on top of this process's.
        stdin: bytes to feed; None gives an empty input.
        timeout: seconds until the whole process group is killed.

    Returns:
        The exit status with both outputs.

    Raises:
        EnvironmentUnfitError: the program does not exist or cannot be run.
        subprocess.TimeoutExpired: `timeout` passed.
    """
    argv = tuple(str(part) for part in command)
    log.debug("$ %s", shlex.join(argv))
    with _start(argv, cwd, env or {}, stdin) as process:
        _live.add(process)
        try:
            out, err = process.communicate(stdin, timeout)
        except BaseException:
            # Ctrl-C or a timeout must not leave compilers or probes behind.
            _kill(process)
            raise
        finally:
            _live.discard(process)
    log.debug("-> %d\n%s", process.returncode, err.decode("utf-8", "replace"))
    return Completed(argv, process.returncode, out, err)


def _start(
    argv: tuple[str, ...], cwd: Path | None, env: Mapping[str, str], stdin: bytes | None
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, so that it can be ended with all that it starts."""
    try:
        return subprocess.Popen(
            argv,
            cwd=cwd,
            env={**os.environ, **env},
            stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (FileNotFoundError, PermissionError) as error:
        if error.filename is not None and str(error.filename) == str(cwd):
            raise
        raise EnvironmentUnfitError(
            f"{argv[0]} cannot be run: {error.strerror}",
            cause="it is not installed, not on PATH, or not executable",
            remedy=f"install {Path(argv[0]).name}",
        ) from None


def run_shown(command: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str], timeout: float) -> int:
    """Run `command` with its output on the terminal.

    Args:
        command: program and arguments.
        cwd: working folder.
        env: variables set on top of this process's.
        timeout: seconds until the whole process group is killed.

    Returns:
        Its exit status.

    Raises:
        subprocess.TimeoutExpired: `timeout` passed.
    """
    argv = [str(part) for part in command]
    log.debug("$ %s", shlex.join(argv))
    with subprocess.Popen(argv, cwd=cwd, env={**os.environ, **env}, start_new_session=True) as process:
        _live.add(process)
        try:
            return process.wait(timeout)
        except KeyboardInterrupt:
            _ask_to_end(process)
            raise
        finally:
            _kill(process)
            _live.discard(process)


def _ask_to_end(process: subprocess.Popen[bytes]) -> None:
    """Pass Ctrl-C on and give the command time to clean up: a test run has processes and folders of its own."""
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        process.send_signal(signal.SIGINT)
        process.wait(_GRACE)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a command and everything it started; one that has ended already is fine."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def kill_all() -> None:
    """End every command that still runs, so that Ctrl-C need not wait for a compiler in another thread."""
    for process in tuple(_live):
        _kill(process)
