"""Folders are replaced and removed as one step, whatever interrupts it; copies of repositories keep their format."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from build import paths
from build.errors import SourceError
from build.git import Git
from build.series.commits import new_repository, replacing

from .repos import make_repo


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


def replace(final: Path, text: str) -> None:
    with replacing(final) as new:
        (new / "file").write_text(text)


@pytest.mark.parametrize("then", [interrupt, lambda: signal.raise_signal(signal.SIGINT)])
def test_an_interrupt_between_the_two_steps_loses_nothing(
    then: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system that cannot exchange two folders in one step."""
    monkeypatch.setattr(paths, "exchange", lambda *_: False)
    final = tmp_path / "place" / "final"
    replace(final, "old")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", second(Path.rename, then))
        with pytest.raises(KeyboardInterrupt):
            replace(final, "new")
    assert final.is_dir()
    replace(final, "newer")
    assert content(final.parent) == [("final/file", "newer")]


@pytest.mark.parametrize("link", [False, True])
def test_only_a_folder_is_replaced(tmp_path: Path, *, link: bool) -> None:
    final = tmp_path / "final"
    final.symlink_to(tmp_path) if link else final.write_text("a person's")
    with pytest.raises(SourceError, match="is in the way"):
        replace(final, "new")
    assert final.is_symlink() if link else final.read_text() == "a person's"


@pytest.mark.parametrize("kind", ["sha1", "sha256"])
def test_a_copy_has_the_format_of_its_source(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "repo").mkdir()
    Git(tmp_path / "repo").out("init", "-q", "-b", "main", f"--object-format={kind}")
    source = make_repo(tmp_path / "repo", {"a.c": b"text\n"})
    monkeypatch.setenv("GIT_DEFAULT_HASH", "sha256")
    copy = new_repository(source, tmp_path / "copy")
    assert copy.line("rev-parse", "--show-object-format") == kind
    assert copy.out("cat-file", "blob", f"{source.resolve('HEAD')}:a.c") == b"text\n"
