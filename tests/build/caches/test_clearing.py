"""`clean` tells what the cache holds, and frees it by age or size: never what a run uses, and nothing else's."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock

from build import bootstrap, clearing, leases, seals
from build.cli import main
from build.paths import REPO, cache

_DAY = 86400
#: Takes a lease the way a build does, says so, and keeps it until its input ends.
_HOLDER = """
import sys
from pathlib import Path
from build import seals
seals.built(Path(sys.argv[1]), "an entry", lambda part: (part / "a").write_text("x"))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIWORLD_CACHE", str(tmp_path / "cache"))


def entry(kind: str, name: str, *, days: float, size: int = 1000) -> Path:
    """Make an entry as another run left it, last used `days` ago."""
    path = cache(kind) / name
    path.mkdir()
    (path / "file").write_bytes(b"x" * size)
    seals.seal(path)
    leases.place(path).touch()
    then = time.time() - days * _DAY
    os.utime(leases.place(path), (then, then))
    return path


def names(found: object) -> list[str]:
    return [item.path.name for item in found]  # type: ignore[attr-defined]


def test_what_is_there_is_told_by_kind_and_last_use(capsys: pytest.CaptureFixture[str]) -> None:
    entry("headers", "new", days=1)
    entry("objects", "old", days=40, size=3_000_000)
    (cache("wheels", "0123") / "torch.whl").write_bytes(b"x")
    assert main(["clean"]) == 0
    shown = capsys.readouterr().out
    assert names(clearing.entries()) == ["old", "new", "torch.whl"]
    assert "3.0 MB" in shown
    assert "nothing is freed" in shown
    assert len(clearing.entries()) == 3


def test_old_entries_are_freed_and_made_again(capsys: pytest.CaptureFixture[str]) -> None:
    old, new = entry("headers", "old", days=40), entry("headers", "new", days=1)
    assert main(["clean", "--older-than", "30d", "--dry-run"]) == 0
    assert "would free" in capsys.readouterr().out
    assert old.is_dir()
    assert main(["clean", "--older-than", "30d"]) == 0
    assert not old.exists()
    assert sorted(path.name for path in old.parent.glob("*.[us]*")) == ["new.seal", "new.use"]
    assert new.is_dir()
    assert seals.built(old, "it", Path.touch).is_dir()
    assert not main(["clean", "--older-than", "30d"])
    assert old.is_dir()


def test_the_least_recently_used_go_until_the_size_is_kept() -> None:
    paths = [entry("objects", f"{days}", days=days, size=1_000_000) for days in (3, 1, 2)]
    assert main(["clean", "--keep", "2.2MB"]) == 0
    assert [path.name for path in paths if path.is_dir()] == ["1", "2"]
    assert main(["clean", "--keep", "0"]) == 0
    assert clearing.entries() == ()


def test_what_a_run_uses_is_never_freed(capsys: pytest.CaptureFixture[str]) -> None:
    path = cache("unpacked") / "wheel"
    command = [sys.executable, "-c", _HOLDER, str(path)]
    with subprocess.Popen(
        command, cwd=REPO, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ, text=True
    ) as run:
        assert run.stdout is not None
        assert run.stdin is not None
        assert run.stdout.readline() == "held\n"
        assert main(["clean", "--keep", "0"]) == 0
        assert (path / "a").is_file()
        assert "in use, left: unpacked/wheel" in capsys.readouterr().out
        run.stdin.close()
        assert run.wait(timeout=60) == 0
    assert main(["clean", "--keep", "0"]) == 0
    assert not path.exists()


def test_what_a_run_makes_is_not_freed() -> None:
    path = entry("sources", "tree", days=40)
    left = path.with_name(".tree.abc.part")
    left.mkdir()
    with FileLock(path.with_name("tree.lock")):
        assert main(["clean", "--keep", "0"]) == 0
        assert path.is_dir()
        assert left.is_dir()
    assert main(["clean", "--keep", "0"]) == 0
    assert not path.exists()
    assert not left.exists()


def test_a_trial_does_not_count_as_a_use() -> None:
    entry("objects", "old", days=40)
    before = clearing.entries()
    assert main(["clean", "--keep", "0", "--dry-run"]) == 0
    assert clearing.entries() == before


def test_nothing_else_is_touched(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("x")
    strange = cache("headers") / "somebody's"
    strange.mkdir()
    (cache() / "other").mkdir()
    (cache("port") / "nccl-2.9.1").mkdir()
    (cache("port") / "nccl-2.9.1.lock").touch()
    link = cache("objects") / "link"
    link.symlink_to(outside)
    leases.place(link).touch()
    assert main(["clean", "--keep", "0"]) == 0
    assert (outside / "mine").is_file()
    assert not link.is_symlink()
    assert strange.is_dir()
    assert (cache() / "other").is_dir()
    assert (cache("port") / "nccl-2.9.1").is_dir()


def _folders() -> set[str]:
    """Return the folders that the code makes in the cache: the literal arguments of its calls of `cache`."""
    found = set()
    for path in (
        *REPO.glob("build/**/*.py"),
        *REPO.glob("ci/**/*.py"),
        *REPO.glob("gpuless/**/*.py"),
        *REPO.glob("docs/**/*.py"),
    ):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("cache", "paths.cache") and node.args:
                literal = [item.value for item in node.args if isinstance(item, ast.Constant)]
                found.add("/".join(map(str, literal)))
    return found


def test_every_folder_of_the_cache_is_known() -> None:
    kinds = set(clearing.KINDS)
    assert len(_folders()) > 10
    assert _folders() <= kinds, "what no kind names is never freed"
    assert {"nox", "tooling"} <= kinds, "made by build.bootstrap"


@pytest.mark.parametrize("kind", ["nox", "tooling"])
def test_half_an_environment_is_not_ready(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a clean that was killed before it removed a file of the folder."""
    path = entry(kind, "0123", days=40)
    (path / bootstrap.READY).touch()

    def killed(*_: object) -> None:
        raise OSError("killed")

    monkeypatch.setattr("shutil.rmtree", killed)
    (found,) = clearing.entries()
    with pytest.raises(OSError, match="killed"):
        clearing.free(found)
    assert (path / "file").is_file()
    assert not (path / bootstrap.READY).exists()


@pytest.mark.parametrize("kind", sorted(set(clearing.KINDS) - {clearing.KEPT}))
def test_every_kind_is_freed(kind: str) -> None:
    names_of = {"compiled": "ccache", "wheels": "0123/torch.whl"}
    path = cache(kind) / names_of.get(kind, "old.json" if kind in clearing._UNMARKED else "old")
    path.parent.mkdir(exist_ok=True)
    if kind in clearing._UNMARKED or kind == "wheels":
        path.write_text("x")
    else:
        path.mkdir()
        (path / ".lock").touch()  # of a test's environment
        path.with_name("old.lock").touch()
    assert names(clearing.entries()) == [path.name]
    assert main(["clean", "--keep", "0"]) == 0
    assert not path.exists()


@pytest.mark.parametrize("wrong", [["--older-than", "3x"], ["--keep", "much"], ["--older-than", "-1d"]])
def test_wrong_arguments(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    path = entry("objects", "old", days=40)
    assert main(["clean", *wrong]) == 2
    assert "give" in capsys.readouterr().err
    assert path.is_dir()
