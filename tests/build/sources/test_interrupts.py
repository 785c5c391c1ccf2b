"""Real processes, really interrupted: nothing half-made stays, and the next run goes on."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from .helpers import acquiring, allow_ext, helper_url
from .trees import git, leftovers, make_remote

BOUND = 60.0


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + BOUND
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never appeared"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    """Return whether a process ends within bounds."""
    deadline = time.monotonic() + BOUND
    while Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made, _ = make_remote(tmp_path)
    allow_ext(monkeypatch)
    return made


@pytest.fixture
def hanging(tmp_path: Path, remote: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A remote that answers nothing until `hang` is removed; its folder of state."""
    monkeypatch.setenv("MULTIWORLD_UPSTREAM", helper_url(tmp_path, remote, hang=True))
    return tmp_path / "server"


def test_ctrl_c_leaves_nothing_and_the_next_run_goes_on(hanging: Path, remote: Path, cache: Path) -> None:
    commit = git(remote, "rev-parse", "v2.6.0^{commit}")
    process = acquiring(commit)
    wait_for(hanging / "hanging")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=BOUND)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in err
    assert leftovers(cache) == []
    helper = int((hanging / "hanging").read_text())
    assert gone(helper)  # git and its helper went with it
    (hanging / "hang").unlink()
    out, err = acquiring(commit).communicate(timeout=BOUND)
    assert "acquired" in out, err
    assert len(leftovers(cache)) == 1


def test_two_at_once_the_second_waits_and_says_so(hanging: Path, remote: Path, cache: Path) -> None:
    commit = git(remote, "rev-parse", "v2.6.0^{commit}")
    first = acquiring(commit)
    wait_for(hanging / "hanging")
    second = acquiring(commit)
    assert second.stdout is not None
    waiting = second.stdout.readline()
    assert "another run holds the source of PyTorch 2.6.0; waiting" in waiting
    (hanging / "hang").unlink()
    first_out, _ = first.communicate(timeout=BOUND)
    second_out, second_err = second.communicate(timeout=BOUND)
    # The first one's remote died; the second found the lock free and did the work.
    assert "acquired" not in first_out
    assert "acquired" in second_out, second_err
    assert len(leftovers(cache)) == 1


def test_killed_run_does_not_stop_the_next(hanging: Path, remote: Path) -> None:
    commit = git(remote, "rev-parse", "v2.6.0^{commit}")
    process = acquiring(commit)
    wait_for(hanging / "hanging")
    process.kill()
    process.communicate(timeout=BOUND)
    (hanging / "hang").unlink()
    out, err = acquiring(commit).communicate(timeout=BOUND)
    assert "acquired" in out, err
