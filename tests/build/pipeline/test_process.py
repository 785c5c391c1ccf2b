"""External commands: what they return, and that nothing of them stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from build.errors import EnvironmentUnfitError
from build.paths import REPO
from build.process import run, run_shown, run_together

#: Starts a child that would live for a minute, and says its number.
_PARENT = "import subprocess,sys,time; c=subprocess.Popen(['sleep','61']); open(sys.argv[1],'w').write(str(c.pid)); "


def gone(pid: int, seconds: float = 10.0) -> bool:
    """Wait until a process is no more (a zombie is no more)."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


def test_what_a_command_returns() -> None:
    code = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read()[::-1]); print('x', file=sys.stderr); exit(3)"
    done = run([sys.executable, "-c", code], stdin=b"\xff\r\n\0a")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"a\0\n\r\xff", b"x\n")
    assert done.tail == "x"


def test_environment_and_folder(tmp_path: Path) -> None:
    done = run(["sh", "-c", 'echo "$ADDED $PWD"; cat'], cwd=tmp_path, env={"ADDED": "yes"})
    assert done.stdout.decode() == f"yes {tmp_path}\n"


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnfitError, match="no-such-program cannot be run") as caught:
        run(["no-such-program"])
    assert "install no-such-program" in caught.value.remedy
    (tmp_path / "plain").write_text("text")
    with pytest.raises(EnvironmentUnfitError, match="plain cannot be run"):
        run([tmp_path / "plain"])


def test_too_late_ends_the_whole_group(tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run([sys.executable, "-c", _PARENT + "c.wait()", tmp_path / "pid"], timeout=2)
    assert gone(int((tmp_path / "pid").read_text()))


def test_too_late_ends_those_in_groups_of_their_own(tmp_path: Path) -> None:
    """ninja puts each compiler into one."""
    grouped = _PARENT.replace("'61'])", "'61'], preexec_fn=__import__('os').setpgrp)")
    with pytest.raises(subprocess.TimeoutExpired):
        run([sys.executable, "-c", grouped + "c.wait()", tmp_path / "pid"], timeout=2)
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_shown_command_leaves_no_child(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-c", _PARENT + "print('shown'); sys.exit(7)", str(tmp_path / "pid")]
    assert run_shown(command, cwd=tmp_path, env={}, timeout=30) == 7
    assert capfd.readouterr().out == "shown\n"
    assert gone(int((tmp_path / "pid").read_text()))


#: Waits for Ctrl-C, and cleans up after it.
_INNER = """
import sys, time
try:
    open(sys.argv[1], "w").close()
    time.sleep(60)
finally:
    open(sys.argv[2], "w").close()
"""
_OUTER = """
import os, signal, subprocess, sys, time
from pathlib import Path
from build.process import run, run_shown, run_together

class Interrupted(subprocess.Popen):
    def __init__(self, *args, **keywords):
        super().__init__(*args, **keywords)
        end = time.monotonic() + 30
        while not os.path.exists(sys.argv[2]) and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
        Path(sys.argv[2] + ".pid").write_text(str(self.pid))

if "early" in sys.argv:
    subprocess.Popen = Interrupted
command = [sys.executable, "-c", sys.argv[1], *sys.argv[2:4]]
try:
    if "shown" in sys.argv:
        run_shown(command, cwd=Path("/"), env={}, timeout=60)
    else:
        run(command, timeout=60)
except KeyboardInterrupt:
    sys.exit(130)
"""


def _outer(*arguments: str | Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _OUTER, _INNER, *arguments]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(REPO)})


def test_ctrl_c_reaches_a_shown_command_in_time_to_clean_up(tmp_path: Path) -> None:
    """The command is in a session of its own: the terminal's signal reaches this project's process only."""
    ready, cleaned = tmp_path / "ready", tmp_path / "cleaned"
    with _outer(ready, cleaned, "shown") as process:
        end = time.monotonic() + 30
        while not ready.exists() and time.monotonic() < end:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert cleaned.exists()


@pytest.mark.parametrize("way", ["shown", "quiet"])
def test_ctrl_c_while_a_command_is_being_started_leaves_nothing_of_it(tmp_path: Path, way: str) -> None:
    ready, cleaned = tmp_path / "ready", tmp_path / "cleaned"
    with _outer(ready, cleaned, way, "early") as process:
        assert process.wait(60) == 130
    assert gone(int((tmp_path / "ready.pid").read_text()))
    assert cleaned.exists() == (way == "shown")


def test_lines_are_read_as_they_come(tmp_path: Path) -> None:
    go, lines = tmp_path / "go", list[str]()
    code = "import os,sys,time; print('one', flush=True)\nwhile not os.path.exists(sys.argv[1]): time.sleep(.01)\n"
    code += "print('two', file=sys.stderr); sys.exit(7)"

    def seen(line: str) -> None:
        lines.append(line)
        go.touch()

    command: list[str | Path] = [sys.executable, "-c", code, go]
    assert run_shown(command, cwd=tmp_path, env={}, timeout=30, seen=seen) == 7
    assert lines == ["one", "two"]


def test_a_command_that_is_read_ends_at_its_time(tmp_path: Path) -> None:
    code = _PARENT + "print('x', flush=True); time.sleep(62)"
    lines = list[str]()
    command: list[str | Path] = [sys.executable, "-c", code, tmp_path / "pid"]
    assert run_shown(command, cwd=tmp_path, env={}, timeout=2, seen=lines.append) == -signal.SIGKILL
    assert gone(int((tmp_path / "pid").read_text()))


def test_one_that_fails_ends_the_others(tmp_path: Path) -> None:
    code = _PARENT + "print('x', flush=True); time.sleep(62)"
    begun = threading.Event()

    def fail() -> int:
        assert begun.wait(30)
        raise EnvironmentUnfitError("no")

    def long() -> int:
        command: list[str | Path] = [sys.executable, "-c", code, tmp_path / "pid"]
        return run_shown(command, cwd=tmp_path, env={}, timeout=60, seen=lambda _: begun.set())

    with pytest.raises(EnvironmentUnfitError):
        run_together([long, fail])
    assert gone(int((tmp_path / "pid").read_text()))
    assert run_together([lambda: 1, lambda: 2]) == [1, 2]


def test_as_many_at_once_as_are_wanted() -> None:
    assert len(set(run_together([threading.get_ident] * 5, 1))) == 1


def test_all_find_uv() -> None:
    """Its package asks for variables of Python's build, which older Pythons make for one thread alone."""
    ask = "import sys, uv; from build.process import run_together as run; sys.setswitchinterval(1e-6)"
    for _ in range(3):  # two of three fail where it happens
        subprocess.run([sys.executable, "-c", f"{ask}; run([uv.find_uv_bin] * 16)"], cwd=REPO, check=True, timeout=60)
