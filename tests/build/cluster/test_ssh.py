"""The program that Ansible runs as ssh: it bounds what a host sends, loses none of it, and leaves nothing behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from pathlib import Path

import pytest

from build.paths import REPO

PROGRAM = REPO / "ci" / "ansible" / "ssh"
MOST = 4 << 20
#: What reads as slowly as a busy machine lets it.
_SLOW = f'sleep 1; PATH="{os.environ["PATH"]}"; exec dd "$@"'


def started(folder: Path, **programs: str) -> subprocess.Popen[bytes]:
    """Start it where the shell finds these programs first."""
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    env = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    pipe = subprocess.PIPE
    command = [str(PROGRAM), "-x", "host"]
    return subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)


def test_the_answer_is_whole_once_it_has_ended(tmp_path: Path) -> None:
    """Ansible reads no more once its ssh has ended, however late the machine lets the rest run."""
    process = started(tmp_path, ssh='echo "$@"; cat; echo denied >&2; exit 255', dd=_SLOW)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.write(b"sent")
    process.stdin.close()
    assert process.wait(60) == 255, "Ansible takes 255 for a host that cannot be reached"
    for pipe in (process.stdout, process.stderr):
        os.set_blocking(pipe.fileno(), False)
    assert (process.stdout.read(), process.stderr.read()) == (b"-x host\nsent", b"denied\n")


@pytest.mark.parametrize("program", ["exec yes", "exec yes >&2"])
def test_what_a_host_sends_has_an_end(program: str, tmp_path: Path) -> None:
    out, err = started(tmp_path, ssh=program).communicate(timeout=60)
    assert MOST // 2 < len(out) + len(err) <= MOST


def test_an_answer_in_many_pieces_is_not_cut_off(tmp_path: Path) -> None:
    assert len(started(tmp_path, ssh="exec dd bs=1 count=200000 if=/dev/zero").communicate(timeout=60)[0]) == 200000


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_what_is_short_comes_at_once_and_ssh_ends_with_it(number: signal.Signals, tmp_path: Path) -> None:
    """`--become` waits for a prompt before it sends anything."""
    process = started(tmp_path, ssh="printf Password:; exec sleep 60")
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], 30)[0], "it holds back what is short"
    assert os.read(process.stdout.fileno(), 20) == b"Password:"
    process.send_signal(number)
    assert process.wait(30) == -number
    assert process.communicate(timeout=30)[0] == b"", "what still has the pipe open has not ended"
