"""A git remote whose transfers break off or hang, and processes that acquire from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from build.paths import REPO

#: Serves one repository as git's `ext::` transport, but breaks off or hangs as told.
_SERVER = """\
import pathlib, subprocess, sys, time
state, remote = pathlib.Path(sys.argv[1]), sys.argv[2]
calls = state / "calls"
count = int(calls.read_text()) if calls.exists() else 0
calls.write_text(str(count + 1))
if (state / "hang").exists():
    (state / "hanging.part").write_text(str(__import__("os").getpid()))
    (state / "hanging.part").rename(state / "hanging")
    while (state / "hang").exists():
        time.sleep(0.02)
    sys.exit(1)
cuts = int((state / "cuts").read_text())
served = subprocess.Popen(["git", "upload-pack", remote], stdout=subprocess.PIPE)
# The first call of each run is ls-remote, whose few bytes pass; the next is the transfer.
left = 900 if cuts and count else None
if left:
    (state / "cuts").write_text(str(cuts - 1))
while block := served.stdout.read1(left or 65536):
    sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()
    if left is not None:
        left -= len(block)
        if left <= 0:
            served.kill()
            sys.exit(1)
sys.exit(served.wait())
"""


def helper_url(top: Path, remote: Path, *, cut_transfers: int = 0, hang: bool = False) -> str:
    """URL of a server for `remote` that cuts transfers off while `cut_transfers` lasts, or hangs while told to."""
    state = top / "server"
    state.mkdir()
    (state / "cuts").write_text(str(cut_transfers))
    if hang:
        (state / "hang").touch()
    script = state / "serve.py"
    script.write_text(_SERVER)
    return f"ext::{sys.executable} {script} {state} {remote}"


def allow_ext(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let git use `ext::`, which it refuses by default."""
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "protocol.ext.allow")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "always")


_ACQUIRE = """\
import sys
from tests.build.sources.trees import release
from build.sources import acquire
tree = acquire(release(commit=sys.argv[1]))
print("acquired", tree.base)
"""


def acquiring(commit: str) -> subprocess.Popen[str]:
    """A process that acquires the release with that commit from MULTIWORLD_UPSTREAM."""
    return subprocess.Popen(
        [sys.executable, "-c", _ACQUIRE, commit],
        cwd=REPO,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
