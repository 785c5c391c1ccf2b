"""Locks that wait and say so; files that appear whole or not at all."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from build import paths
from build.errors import BusyError, UsageError

_HOLDER = """
import sys
from pathlib import Path
from build.paths import locked
with locked(Path(sys.argv[1]), "it"):
    print("held", flush=True)
    sys.stdin.read()
"""

#: Adds one to a number in a file, many times, each with the lock held.
_COUNTER = """
import sys
from pathlib import Path
from build.paths import locked
for _ in range(60):
    with locked(Path(sys.argv[1]), "it", leave=False):
        count = int(Path(sys.argv[2]).read_text())
        Path(sys.argv[2]).write_text(str(count + 1))
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until its input ends."""
    env = {**os.environ, "PYTHONPATH": str(paths.REPO)}
    command = [sys.executable, "-c", _HOLDER, str(tmp_path / "thing")]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def _release(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()


def test_the_second_waits_and_says_so(
    holder: subprocess.Popen[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def step(message: str) -> None:
        said.append(message)
        _release(holder)

    monkeypatch.setattr(paths, "step", step)
    with paths.locked(tmp_path / "thing", "the thing"):
        assert said == ["another run holds the thing; waiting up to 1800 s for it"]
    assert holder.wait(30) == 0
    assert capsys.readouterr().err == ""


def test_it_does_not_wait_for_ever(
    holder: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MULTIWORLD_LOCK_TIMEOUT", "0.1")
    with pytest.raises(BusyError, match="the thing is still") as caught, paths.locked(tmp_path / "thing", "the thing"):
        pass
    assert str(tmp_path / "thing.lock") in caught.value.cause
    assert holder.poll() is None


def test_a_killed_holder_frees_the_lock(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    holder.kill()
    holder.wait(30)
    with paths.locked(tmp_path / "thing", "the thing"):
        pass


def test_a_lock_file_that_is_removed_still_excludes(tmp_path: Path) -> None:
    """A waiter for the lock has the removed file open, and must not take that for the lock."""
    (tmp_path / "count").write_text("0")
    env = {**os.environ, "PYTHONPATH": str(paths.REPO)}
    command = [sys.executable, "-c", _COUNTER, str(tmp_path / "thing"), str(tmp_path / "count")]
    running = [subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) for _ in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert (tmp_path / "count").read_text() == "180"
    assert [path.name for path in tmp_path.iterdir()] == ["count"]


def test_a_setting_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIWORLD_LOCK_TIMEOUT", "soon")
    with pytest.raises(UsageError, match="MULTIWORLD_LOCK_TIMEOUT=soon"):
        paths.lock_timeout()


def test_an_atomic_write(tmp_path: Path) -> None:
    final = tmp_path / "sub" / "file"
    with paths.atomic_write(final) as part:
        part.write_text("new")
        assert not final.exists()
    assert final.read_text() == "new"
    assert [path.name for path in final.parent.iterdir()] == ["file"]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(final.stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize("error", [OSError("disk"), KeyboardInterrupt()])
def test_a_failure_keeps_the_old_file(error: BaseException, tmp_path: Path) -> None:
    final = tmp_path / "file"
    final.write_text("old")

    def write() -> None:
        with paths.atomic_write(final) as part:
            part.write_text("half")
            raise error

    with pytest.raises(type(error)):
        write()
    assert final.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_killed_runs_left_is_swept(tmp_path: Path) -> None:
    final = tmp_path / "fin[al]"
    mine = [tmp_path / ".fin[al].a1b2.part", tmp_path / ".fin[al].c3d4.part", tmp_path / ".fin[al].link.part"]
    others = [tmp_path / name for name in (".fina.a1.part", "fin[al].part", ".fin[al].lock", ".other.a1.part")]
    (mine[0] / "sub").mkdir(parents=True)
    for path in (final, mine[0] / "sub" / "file", mine[1], *others):
        path.write_text("text")
    mine[2].symlink_to(others[0])
    paths.sweep(final)
    assert sorted(tmp_path.iterdir()) == sorted([final, *others])


def test_the_umask_is_not_touched_while_others_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the umask means setting it: compilers' threads would see the wrong one, or leave it set."""

    def umask(_: int) -> int:
        raise AssertionError("the umask was changed")

    monkeypatch.setattr(os, "umask", umask)
    with paths.atomic_write(tmp_path / "file"):
        pass


def test_the_cache_is_where_the_user_wants_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIWORLD_CACHE", str(tmp_path / "mine"))
    assert paths.cache("a", "b") == tmp_path / "mine" / "a" / "b"
    monkeypatch.delenv("MULTIWORLD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert paths.cache() == tmp_path / "xdg" / "multiworld"
