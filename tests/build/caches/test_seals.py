"""Every kind of damage to a sealed entry, and to its seal. The tests of each cache try `damage.SOME` of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from build import seals
from tests.build.caches import damage

Damage = Callable[[Path], None]
FILES = {"a": b"first\n" * 9, "deep/er/b": bytes(range(256))}


def built(cache: Path) -> Path:
    return seals.built(cache / "x" / "y", "it", _fill)


def _fill(part: Path) -> None:
    for name, data in FILES.items():
        (part / name).parent.mkdir(parents=True, exist_ok=True)
        (part / name).write_bytes(data)


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("harm", damage.ALL)
@pytest.mark.parametrize("name", FILES)
def test_file_of_an_entry(harm: Damage, name: str, own_cache: Path) -> None:
    folder = built(own_cache)
    assert seals.intact(folder)
    harm(folder / name)
    assert not seals.intact(folder)
    assert content(built(own_cache)) == FILES


@pytest.mark.parametrize("harm", [damage.entry_file, damage.entry_empty])
def test_entry_as_a_whole(harm: Damage, own_cache: Path) -> None:
    harm(built(own_cache))
    assert content(built(own_cache)) == FILES


@pytest.mark.parametrize("harm", damage.ALL)
def test_seal(harm: Damage, own_cache: Path) -> None:
    """An entry whose seal is damaged is not believed."""
    folder = built(own_cache)
    harm(folder.with_name(folder.name + ".seal"))
    damage.flip_and_keep_the_time(folder / "a")
    assert content(built(own_cache)) == FILES


@pytest.mark.parametrize("harm", damage.ALL)
@pytest.mark.parametrize("sealed", [True, False])
def test_pinned_file(harm: Damage, sealed: bool, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(FILES["a"])
    digest = hashlib.sha256(FILES["a"]).hexdigest()
    if sealed:
        assert seals.is_file(path, digest)
    harm(path)
    assert not seals.is_file(path, digest)
