"""A build ends with the program that runs it, unless its user wanted it to outlive a shell."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from build.paths import REPO
from build.signals import END_WITH
from tests.build.with_nox import PYTHON

_TIMEOUT = 60.0
_BUILD = """
import pathlib, sys, threading
from build import signals

try:
    signals.handle()
    pathlib.Path(sys.argv[1], "ready").touch()
    threading.Event().wait(50)
except KeyboardInterrupt:
    pathlib.Path(sys.argv[1], "cleaned-up").touch()
"""
#: As nox: it starts the build from its main thread, and SIGTERM ends it at once.
_NOX = """
import os, subprocess, sys
subprocess.run([sys.executable, "-c", {build!r}, sys.argv[1]], env={{**os.environ, {name!r}: str(os.getpid())}})
"""
_ASK = """
import ctypes, os
from build import signals
signals.handle()
number = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(number))
print(number.value, signals.END_WITH in os.environ)
"""
_TOOL = f"""
import os, noxfile
class Session:
    def install(self, *_):
        pass
    def run(self, *_, env, **options):
        print(env["{END_WITH}"], os.getpid())
noxfile._program(Session(), "build", "releases")
"""
#: Two steps, one beside the other, which with `block` run until they are told to end, as Ctrl-C does.
_STEP = """
import os, pathlib, signal, subprocess, sys, time
begun, ready = pathlib.Path("begun"), pathlib.Path("ready")
if "build-2.6.0" in sys.argv:
    if {block}:
        pathlib.Path("child").write_text(str(subprocess.Popen(["sleep", "50"]).pid))
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it has ended, or is about to
    try:
        begun.touch()
        time.sleep(50 if {block} else 0)
    except KeyboardInterrupt:
        pathlib.Path("cleaned-up").touch()
        raise
if "lint" in sys.argv:
    while not begun.exists():
        time.sleep(0.02)
    if {block}:
        ready.touch()
        time.sleep(50)
sys.exit({status} if "lint" in sys.argv else 0)
"""


def wait_for(path: Path, process: subprocess.Popen[str] | None = None) -> None:
    end = time.monotonic() + _TIMEOUT
    while not path.exists():
        assert time.monotonic() < end, path
        assert process is None or process.poll() is None
        time.sleep(0.02)


def _alive(pid: str) -> bool:
    """Return whether a process runs; one that has ended stays until its new parent looks."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_build_ends_with_its_nox(number: signal.Signals, tmp_path: Path) -> None:
    script = _NOX.format(build=_BUILD, name=END_WITH)
    with subprocess.Popen([sys.executable, "-c", script, tmp_path], cwd=REPO, text=True) as nox:
        wait_for(tmp_path / "ready", nox)
        nox.send_signal(number)
        assert nox.wait(_TIMEOUT) == -number
    wait_for(tmp_path / "cleaned-up")


def test_a_nox_that_has_ended_already_ends_it_too(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(_TIMEOUT)
    env = {**os.environ, END_WITH: str(gone.pid)}
    subprocess.run([sys.executable, "-c", _BUILD, tmp_path], cwd=REPO, env=env, check=True, timeout=_TIMEOUT)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cleaned-up"]


@pytest.mark.parametrize(("value", "answer"), [("{ours}", "15"), ("1", "0"), ("", "0"), ("yes", "0")])
def test_only_the_parent_that_asked_counts(value: str, answer: str) -> None:
    """A build that is started by a shell in the background goes on when the shell ends."""
    env = {**os.environ, END_WITH: value.format(ours=os.getpid())}
    done = subprocess.run([sys.executable, "-c", _ASK], cwd=REPO, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [answer, "False"]


@pytest.mark.usefixtures("nox_is_here")
def test_nox_asks_for_it() -> None:
    done = subprocess.run([PYTHON, "-c", _TOOL], cwd=REPO, capture_output=True, text=True, timeout=_TIMEOUT, check=True)
    asked, ours = done.stdout.split()
    assert asked == ours


def _program(path: Path, line: str = "") -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def _python(path: Path, *, headers: bool) -> None:
    """Write a Python that has its headers, or lacks them, when it is asked for their folder."""
    _program(path, f'case "$*" in *get_path*) exit {0 if headers else 1};; esac\nexec {sys.executable} "$@"')


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose noxfile does nothing, on a machine that lacks nothing: no test installs packages."""
    programs = tmp_path / "bin"
    programs.mkdir()
    present = dict.fromkeys(("git", "g++", "ip", "sshd", "patch"), "")
    for name, line in {**present, "apt-get": "exit 1", "sudo": "exit 1"}.items():
        _program(programs / name, line)
    _python(programs / "python3", headers=True)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    for name in (".ci/run", "ci/summary.py", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(REPO / name, tmp_path / name)
    (tmp_path / "ci" / "summary.py").write_text("print('the summary')\n")
    return tmp_path


@pytest.fixture
def child(place: Path) -> Iterator[Path]:
    """Where the step writes the id of what it has started; it is ended whatever the test finds."""
    yield place / "child"
    if (place / "child").exists():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((place / "child").read_text()), signal.SIGKILL)


@pytest.mark.parametrize(("status", "output"), [(0, "the summary\n"), (3, "")])
def test_the_summary_is_the_last_line(place: Path, status: int, output: str) -> None:
    (place / "noxfile.py").write_text(_STEP.format(block=False, status=status))
    done = subprocess.run(
        [place / ".ci" / "run"], capture_output=True, text=True, timeout=_TIMEOUT, check=False, stdin=subprocess.DEVNULL
    )
    assert (done.returncode, done.stdout, done.stderr) == (status, output, "")


def test_the_wheels_made_beside_are_finished_and_shown(place: Path) -> None:
    """Their output comes at once; a failure among them ends the check."""
    steps = """
import sys, time
if "build-2.6.0" in sys.argv:
    print("making")
    time.sleep(0.5)
    print("made", flush=True)
    sys.exit({status})
sys.stdout.write(" ".join(sys.argv[1:]) + "\\n")
"""
    for status in (0, 4):
        (place / "noxfile.py").write_text(steps.format(status=status))
        done = subprocess.run([place / ".ci" / "run"], capture_output=True, text=True, timeout=_TIMEOUT, check=False)
        lines = done.stdout.splitlines()
        assert (done.returncode, done.stderr) == (status, ""), done
        assert lines[lines.index("making") + 1] == "made"
        assert [line for line in lines if line not in ("making", "made")] == [
            "-s lint",
            "--install-only -s tests",
            *(() if status else ("-R -s tests", "-s test-2.6.0", "the summary")),
        ]
        assert list(place.glob("tmp/*")) == []


def test_what_readme_does_not_name_is_installed_after_its_test_command(place: Path) -> None:
    """The rows that were skipped for want of it run then, and only these."""
    programs = place / "bin"
    for name in ("bash", "cat", "chmod", "dirname", "env", "mktemp", "rm", "sed", "sh", "touch"):
        (programs / name).symlink_to(shutil.which(name) or name)
    for name in ("ip", "sshd", "patch", "g++", "git"):
        (programs / name).unlink()
    _python(programs / "python3", headers=False)
    _program(programs / "sudo", 'exec "$@"')
    _program(programs / "id", "echo 1000")
    _program(programs / "apt-get", f'echo apt-get "$@"; touch {programs}/g++ {programs}/git; chmod +x {programs}/g*')
    script = (place / ".ci" / "run").read_text().replace(":/usr/sbin:/sbin", "")  # this machine may have them there
    (place / ".ci" / "run").write_text(script)
    (place / "noxfile.py").write_text("import sys\nsys.stdout.write(' '.join(sys.argv[1:]) + '\\n')\n")
    done = subprocess.run(
        [place / ".ci" / "run"],
        env={**os.environ, "PATH": str(programs)},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line for line in done.stdout.splitlines() if not line.startswith("-s build-2.6.0")]
    update, quiet = "apt-get update -q", "apt-get install -q -y --no-install-recommends"
    assert lines == [
        update,
        f"{quiet} python3-venv git g++",
        "-s lint",
        "--install-only -s tests",
        "-R -s tests",
        update,
        f"{quiet} iproute2 openssh-server patch python3-dev",
        "-R -s tests -- -m ip or sshd or patch or headers tests/build tests/multiworld",
        "-s test-2.6.0",
        "the summary",
    ]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_the_check_ends_with_all_that_it_runs(number: signal.Signals, place: Path, child: Path) -> None:
    (place / "noxfile.py").write_text(_STEP.format(block=True, status=0))
    # A test run under nohup or behind a plain `&` hands ignored signals down.
    script = f"import os, signal; signal.signal({number:d}, signal.SIG_DFL); os.execv('.ci/run', ['.ci/run'])"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, cwd=place, text=True, stderr=subprocess.DEVNULL) as run:
        wait_for(place / "ready", run)
        run.send_signal(number)
        assert run.wait(20) == 128 + number
    wait_for(place / "cleaned-up")
    assert list((place / "tmp").iterdir()) == []
    end = time.monotonic() + 20
    while _alive(child.read_text()):
        assert time.monotonic() < end
        time.sleep(0.02)
