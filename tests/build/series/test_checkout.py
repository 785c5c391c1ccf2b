"""Folders are replaced and removed as one step, whatever interrupts it; copies of repositories keep their format."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from build.git import Git
from build.series.checkout import new_repository, replace_folder

from .repos import make_repo


def folder(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "file").write_text(text)
    return path


def content(place: Path) -> list[tuple[str, str]]:
    return sorted((str(path.relative_to(place)), path.read_text()) for path in place.rglob("*") if path.is_file())


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def second(rename: Callable[[Path, Path], Path], then: Callable[[], None]) -> Callable[[Path, Path], Path]:
    """Return `rename`, which does `then` before its second run."""
    calls: list[Path] = []

    def renamed(self: Path, target: Path) -> Path:
        calls.append(self)
        if len(calls) == 2:
            then()
        return rename(self, target)

    return renamed


@pytest.mark.parametrize("then", [interrupt, lambda: signal.raise_signal(signal.SIGINT)])
def test_an_interrupt_between_the_two_steps_loses_nothing(
    then: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    new, final = folder(tmp_path / "new", "new"), folder(place / "final", "old")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", second(Path.rename, then))
        with pytest.raises(KeyboardInterrupt):
            replace_folder(new, final)
    assert final.is_dir()
    replace_folder(folder(tmp_path / "newer", "newer"), final)
    assert content(place) == [("final/file", "newer")]


def test_what_an_interrupted_removal_left_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "place"
    place.mkdir()
    final = folder(place / "final", "old")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", interrupt)
        with pytest.raises(KeyboardInterrupt):
            replace_folder(folder(tmp_path / "new", "new"), final)
    assert ("final/file", "new") in content(place)
    replace_folder(folder(tmp_path / "newer", "newer"), final)
    assert content(place) == [("final/file", "newer")]


@pytest.mark.parametrize("there", [False, True])
def test_what_a_killed_run_left_is_swept(tmp_path: Path, *, there: bool) -> None:
    """But nothing that has another folder's name."""
    place = tmp_path / "place"
    place.mkdir()
    if there:
        folder(place / "fin[al]", "old")
    folder(place / ".fin[al].old", "older")
    folder(place / ".fina.old", "kept")
    replace_folder(folder(tmp_path / "new", "new"), place / "fin[al]")
    assert sorted(path.name for path in place.iterdir()) == [".fina.old", "fin[al]"]
    assert (place / "fin[al]" / "file").read_text() == "new"


@pytest.mark.parametrize("kind", ["sha1", "sha256"])
def test_a_copy_has_the_format_of_its_source(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "repo").mkdir()
    Git(tmp_path / "repo").out("init", "-q", "-b", "main", f"--object-format={kind}")
    source = make_repo(tmp_path / "repo", {"a.c": b"text\n"})
    monkeypatch.setenv("GIT_DEFAULT_HASH", "sha256")
    copy = new_repository(source, tmp_path / "copy")
    assert copy.line("rev-parse", "--show-object-format") == kind
    assert copy.out("cat-file", "blob", f"{source.resolve('HEAD')}:a.c") == b"text\n"
