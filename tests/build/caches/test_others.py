"""The environment of nox, environments for tests, the imitation of CUDA, and a port that waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from build import seals
from build.errors import ToolError
from build.paths import REPO
from build.porting import Action
from build.porting.between_trees import Request, port_folder
from build.porting.session import discard
from gpuless import imitation
from tests.build.caches import damage
from tests.build.pipeline.test_bootstrap import _FAKE, run
from tests.build.porting.trees import series_on
from tests.build.series.repos import commit, make_repo, numbered

Damage = Callable[[Path], None]


@pytest.mark.parametrize("name", ["bin/python", "ready"])
def test_environment_of_nox(name: str, tmp_path: Path) -> None:
    assert run(tmp_path, _FAKE).returncode == 42
    (folder,) = (path for path in (tmp_path / "nox").iterdir() if path.is_dir())
    (folder / name).unlink()
    again = run(tmp_path, _FAKE)
    assert again.returncode == 42, again.stderr
    assert run(tmp_path, "def never(*_): raise SystemExit('made twice')\nbootstrap._make = never\n").returncode == 42
    (folder / "bin" / "python").write_bytes(b"\0")
    damaged = run(tmp_path, _FAKE)
    assert damaged.returncode == 5
    assert "what it has is damaged" in damaged.stderr


@pytest.mark.parametrize("harm", [damage.entry_file, damage.entry_empty])
def test_environment_of_nox_as_a_whole(harm: Damage, tmp_path: Path) -> None:
    assert run(tmp_path, _FAKE).returncode == 42
    (folder,) = (path for path in (tmp_path / "nox").iterdir() if path.is_dir())
    harm(folder)
    assert run(tmp_path, _FAKE).returncode == 42


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("harm", damage.SOME)
def test_imitation_of_cuda(harm: Damage, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("libgpuless.so", "libgpuless_rest.so", "libcuda.so.1")

    def compile_all(_: object, __: object, part: Path) -> None:
        for name in names:
            (part / name).write_bytes(name.encode() * 9)

    monkeypatch.setattr(imitation, "_compiler", lambda: ["cc"])
    monkeypatch.setattr(imitation, "_digest", lambda *_: "0" * 64)
    monkeypatch.setattr(imitation, "_compile_all", compile_all)
    native = imitation.built(None)  # type: ignore[arg-type]
    harm(native / names[0])
    assert imitation.built(None) == native  # type: ignore[arg-type]
    assert (native / names[0]).read_bytes() == b"libgpuless.so" * 9


_KILLED = """
import os, signal
from build.wheeltest import environments
with environments._folder(environments.Form.STOCK) as folder:
    (folder / "gigabytes").write_text("x")
    print(folder, flush=True)
    input()
"""


def test_environments_of_killed_runs_go_and_those_in_use_stay(own_cache: Path) -> None:
    from build.wheeltest import environments

    def start() -> tuple[subprocess.Popen[str], Path]:
        process = subprocess.Popen(
            [sys.executable, "-c", _KILLED],
            cwd=REPO,
            env={**os.environ, "MULTIWORLD_CACHE": str(own_cache)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        return process, Path(process.stdout.readline().strip())

    killed, left = start()
    living, used = start()
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)
    assert left.is_dir()
    with environments._folder(environments.Form.PATCHED) as own:
        assert not left.exists()
        assert (used / "gigabytes").exists()
        assert own.is_dir()
    living.communicate("\n", timeout=60)
    assert not used.exists()


@pytest.mark.parametrize("harm", damage.SOME)
def test_port_that_waits(harm: Damage, tmp_path: Path) -> None:
    """It holds a person's work: it is refused with what to do, and --abort ends it."""
    git = make_repo(tmp_path / "repo", {"a.c": numbered(40)})
    git.out("tag", "old")
    (tmp_path / "patches").mkdir()
    for number, data in enumerate(series_on(git, [{"a.c": numbered(40, l10="mine\n")}]), 1):
        (tmp_path / "patches" / f"{number}.patch").write_bytes(data)
    commit(git, {"a.c": numbered(40, l10="upstream\n")}, "upstream")
    git.out("tag", "new")

    def port(action: Action) -> None:
        root = tmp_path
        port_folder(Request(root / "patches", f"{git.folder}@old", f"{git.folder}@new", root / "out", action))

    port(Action.START)
    (state,) = (tmp_path / "out.port").glob("*.json")
    harm(state)
    with pytest.raises(ToolError, match="is damaged") as caught:
        port(Action.CONTINUE)
    assert "--abort" in caught.value.remedy
    discard(tmp_path / "out.port")
    assert not state.exists()


def _fill(part: Path) -> None:
    (part / "f").write_text("f")


def test_a_pipe_in_an_entry_does_not_hang(own_cache: Path) -> None:
    folder = seals.built(own_cache / "x" / "y", "it", _fill)
    (folder / "f").unlink()
    os.mkfifo(folder / "f")
    assert not seals.intact(folder)


def test_a_cache_that_only_others_may_write_serves(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = seals.built(own_cache / "x" / "y", "it", _fill)
    (folder / "f").touch()

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(seals, "_write", refuse)
    assert seals.intact(folder)
