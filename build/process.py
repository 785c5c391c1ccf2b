"""Run one external command: shown, logged, bounded in time."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import signal
import subprocess
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import IO, TypeVar

import uv

from build.console import log
from build.errors import EnvironmentUnfitError
from build.signals import deferred_signals

T = TypeVar("T")

_live: set[subprocess.Popen[bytes]] = set()
_GRACE = 10.0
#: What programs say of a full disk or a used-up quota.
_FULL = (b"No space left on device", b"Disk quota exceeded")
_PLACES = ("DIR", "COMMON_DIR", "WORK_TREE", "IMPLICIT_WORK_TREE", "INDEX_FILE", "PREFIX", "NAMESPACE", "DEFAULT_HASH")
_OBJECTS = ("OBJECT_DIRECTORY", "ALTERNATE_OBJECT_DIRECTORIES", "QUARANTINE_PATH", "REPLACE_REF_BASE")
#: What an outer git (a hook, an alias, `rebase --exec`) sets for its own repository: a git started here would take it
#: over and write there. And the user's format of new repositories: commit ids here have one format on every machine.
FOREIGN = frozenset(f"GIT_{name}" for name in (*_PLACES, *_OBJECTS, "GRAFT_FILE", "SHALLOW_FILE"))


class Completed(subprocess.CompletedProcess[bytes]):
    """The result of a command: `stdout` and `stderr` are bytes, since patches and symbols are bytes."""

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
    without: Collection[str] = (),
    stdin: bytes | None = None,
    timeout: float = 1800.0,
) -> Completed:
    """Run `command` and return its result whatever its exit status.

    Args:
        command: program and arguments; never a shell line.
        cwd: working folder, default the current one.
        env: variables set on top of `environment()`.
        without: variables that the command does not get; to a program an empty variable may have a meaning.
        stdin: bytes to feed; None gives an empty input.
        timeout: seconds until the whole process group is killed.

    Raises:
        EnvironmentUnfitError: the program does not exist or cannot be run.
        subprocess.TimeoutExpired: `timeout` passed.
    """
    argv = tuple(str(part) for part in command)
    log.debug("$ %s", shlex.join(argv))
    source = subprocess.DEVNULL if stdin is None else subprocess.PIPE
    with running(lambda: start(argv, cwd, env or {}, source, subprocess.PIPE, subprocess.PIPE, without)) as process:
        out, err = process.communicate(stdin, timeout)
    log.debug("-> %d\n%s", process.returncode, err.decode("utf-8", "replace"))
    return Completed(argv, process.returncode, out, err)


def environment() -> dict[str, str]:
    """Return the variables of this process without those that an outer git set for itself (`FOREIGN`)."""
    return {name: value for name, value in os.environ.items() if name not in FOREIGN}


def start(
    argv: tuple[str, ...],
    cwd: Path | None,
    env: Mapping[str, str],
    source: int | IO[bytes] | None = None,
    output: int | None = None,
    errors: int | IO[bytes] | None = None,
    without: Collection[str] = (),
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, so that it can be killed with all that it starts."""
    everything = {**{name: value for name, value in environment().items() if name not in without}, **env}
    try:
        return subprocess.Popen(
            argv, cwd=cwd, env=everything, stdin=source, stdout=output, stderr=errors, start_new_session=True
        )
    except (FileNotFoundError, PermissionError) as error:
        if error.filename is not None and str(error.filename) == str(cwd):
            raise
        what, remedy = f"{argv[0]} cannot be run: {error.strerror}", f"install {Path(argv[0]).name}"
        raise EnvironmentUnfitError(what, remedy=remedy) from None


@contextlib.contextmanager
def running(start: Callable[[], subprocess.Popen[bytes]], grace: float = 0.0) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command; an exception in the block, Ctrl-C included, kills it with all that it started.

    With `grace` (seconds) the command gets Ctrl-C first, and has that long to clean up.
    """
    started: list[subprocess.Popen[bytes]] = []
    try:
        # An interrupt between these two lines would leave a running command that is in no list.
        with deferred_signals():
            started.append(start())
            _live.update(started)
        yield started[0]
    except BaseException as error:
        for process in started:
            if grace and isinstance(error, KeyboardInterrupt):
                with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    process.send_signal(signal.SIGINT)
                    process.wait(grace)
            _kill(process)
            if process.stdin is not None:  # what is buffered has no reader any more
                with contextlib.suppress(BrokenPipeError, ValueError):
                    process.stdin.close()
        raise
    finally:
        for process in started:
            with process:
                _live.discard(process)


def check_room(done: Completed) -> Completed:
    """Return the result of a command; raise EnvironmentUnfitError if it has failed because a disk is full."""
    if done.returncode and any(words in done.stderr for words in _FULL):
        raise EnvironmentUnfitError(
            f"the disk is full: {Path(done.args[0]).name} cannot write",
            cause=f"{done.tail}\ntemporary files go to {tempfile.gettempdir()}",
            remedy="free disk space there, or set TMPDIR, MULTIWORLD_CACHE or UV_CACHE_DIR to a folder with 1 GB free",
        )
    return done


def uv_run(
    what: str,
    *arguments: str | Path,
    remedy: str = "check network and disk; uv's settings (UV_DEFAULT_INDEX, UV_CACHE_DIR) apply",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    without: Collection[str] = (),
    stdin: bytes | None = None,
) -> Completed:
    """Run uv, which makes `what`, as `run` does; raise EnvironmentUnfitError if it fails."""
    command = [uv.find_uv_bin(), *arguments]
    done = check_room(run(command, cwd=cwd, env=env, without=without, stdin=stdin, timeout=3600))
    if done.returncode:
        raise EnvironmentUnfitError(f"{what} could not be made", cause=done.tail, remedy=remedy)
    return done


def run_shown(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str],
    timeout: float,
    seen: Callable[[str], None] | None = None,
    stdin: IO[bytes] | None = None,
) -> int:
    """Run `command` with its output on the terminal and return its exit status; Ctrl-C gives it time to clean up.

    Args:
        seen: gets each line of the output instead of the terminal; then a passed `timeout` raises nothing.
        stdin: what the command reads; default what this process reads.

    Raises: as `run`.
    """
    argv = tuple(str(part) for part in command)
    log.debug("$ %s", shlex.join(argv))
    output, errors = (subprocess.PIPE, subprocess.STDOUT) if seen else (None, None)
    with running(lambda: start(argv, cwd, env, stdin, output, errors), _GRACE) as process:
        if seen and process.stdout:
            late = threading.Timer(timeout, _kill, [process])  # ends the output, too
            late.start()
            lines = io.TextIOWrapper(process.stdout, encoding="utf-8", errors="replace")  # open while it cleans up
            try:
                for line in lines:
                    seen(line.rstrip("\n"))
            finally:
                late.cancel()
        status = process.wait(timeout)
        _kill(process)
    return status


def run_together(tasks: Sequence[Callable[[], T]], most: int | None = None, grace: float = _GRACE) -> list[T]:
    """Call functions that run commands at once, `most` of them (default all), and return their results.

    A failure or Ctrl-C ends all commands, which have `grace` seconds to clean up.
    """
    sysconfig.get_config_vars()  # older Pythons show it half made to a second thread that asks, as uv's package does
    with ThreadPoolExecutor(most or len(tasks)) as pool:
        futures = [pool.submit(task) for task in tasks]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            return [future.result() for future in futures if future.done()]
        except BaseException:
            for future in futures:
                future.cancel()  # what has not begun
            for process in tuple(_live):
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGINT)
            wait(futures, timeout=grace)
            while pending := [future for future in futures if not future.done()]:
                kill_all()  # repeatedly: a thread may have been about to start its command
                wait(pending, timeout=0.1)
            raise


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for other in _session(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(other, signal.SIGKILL)


def _session(leader: int) -> list[int]:
    """Return the processes of a session: ninja gives each compiler a process group of its own, which outlives ninja."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):  # ended meanwhile
            # Behind the name, which may have blanks: state, parent, group, session.
            if int(path.read_bytes().rpartition(b")")[2].split()[3]) == leader:
                found.append(int(path.parent.name))
    return found


def kill_all() -> None:
    """Kill every running command, so that Ctrl-C does not wait for a compiler in another thread."""
    for process in tuple(_live):
        _kill(process)
