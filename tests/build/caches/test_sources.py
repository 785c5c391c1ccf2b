"""Damage to cached sources and to the checkout that is made of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from build.errors import SourceError, ToolError
from build.git import Git
from build.series.apply import AppliedTree, apply_series, check_files
from build.series.model import PatchFile
from build.sources import acquire
from build.sources.tree import SourceTree
from tests.build.caches import damage
from tests.build.series.repos import make_patch, make_repo, numbered, parsed
from tests.build.sources.trees import FILES, git, make_remote, make_tarball, release

Damage = Callable[[Path], None]
UNIT = "torch/csrc/cuda/nccl.cpp"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MULTIWORLD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MULTIWORLD_UPSTREAM", str(tmp_path / "no-such-remote"))
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_tarball(tmp_path / "t.tar.xz")


def victim(repo: Path, name: str) -> Path:
    """A file of a repository: of the work tree by its path, else of `.git` by a pattern."""
    return repo / name if not name.startswith("*") else min((repo / ".git").rglob(name[1:] if "/" in name else name))


def check(tree: SourceTree) -> None:
    """The tree is whole: work tree, commit and objects."""
    assert (tree.repo / UNIT).read_bytes() == FILES[UNIT]
    assert git(tree.repo, "status", "--porcelain") == ""
    git(tree.repo, "fsck", "--full", "--strict")


@pytest.mark.parametrize("harm", damage.SOME)
@pytest.mark.parametrize("name", [UNIT, "*main", "*HEAD", "*config", "*objects/??/*"])
def test_source(harm: Damage, name: str, source: Path) -> None:
    tree = acquire(release(), source)
    harm(victim(tree.repo, name))
    again = acquire(release(), source)
    assert again == tree
    check(again)


@pytest.mark.parametrize("harm", [damage.entry_file, damage.entry_empty])
def test_source_as_a_whole(harm: Damage, source: Path) -> None:
    tree = acquire(release(), source)
    harm(tree.repo)
    check(acquire(release(), source))


@pytest.mark.parametrize("harm", damage.SOME)
def test_source_from_upstream(harm: Damage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote, commit = make_remote(tmp_path)
    monkeypatch.setenv("MULTIWORLD_UPSTREAM", f"file://{remote}")
    tree = acquire(release(commit=commit))
    harm(tree.repo / UNIT)
    again = acquire(release(commit=commit))
    assert again.base == tree.base
    check(again)


def test_damaged_source_without_its_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote, commit = make_remote(tmp_path)
    monkeypatch.setenv("MULTIWORLD_UPSTREAM", f"file://{remote}")
    tree = acquire(release(commit=commit))
    damage.flip(tree.repo / UNIT)
    monkeypatch.setenv("MULTIWORLD_UPSTREAM", str(tmp_path / "gone"))
    with pytest.raises(SourceError) as caught:
        acquire(release(commit=commit))
    assert caught.value.remedy


def test_what_git_writes_by_itself_is_no_damage(source: Path) -> None:
    tree = acquire(release(), source)
    inode = tree.repo.stat().st_ino
    (tree.repo / UNIT).touch()
    git(tree.repo, "status")
    git(tree.repo, "update-index", "--refresh")
    assert acquire(release(), source).repo.stat().st_ino == inode


def test_what_killed_runs_left(source: Path, cache: Path) -> None:
    tree = acquire(release(), source)
    for kind in ("fetch.1", "apt.2", "3"):
        (cache / "sources" / f".{tree.repo.name}.{kind}.part").mkdir()
    damage.flip(tree.repo / UNIT)
    acquire(release(), source)
    assert [path.name for path in (cache / "sources").iterdir() if path.name.startswith(".")] == []


def test_folder_edited_with_its_size_and_time_kept(tmp_path: Path) -> None:
    """The user's own folder is no cache, but what is imported of it is kept by its times."""
    from tests.build.sources.trees import write_tree

    folder = write_tree(tmp_path / "plain")
    first = acquire(release(), folder)
    damage.flip_and_keep_the_time(folder / UNIT)
    assert acquire(release(), folder).base != first.base


@pytest.fixture
def repo(tmp_path: Path) -> Git:
    return make_repo(tmp_path / "source", {"a.c": numbered(60), "b.c": numbered(30)})


@pytest.fixture
def patches(repo: Git) -> list[PatchFile]:
    return [parsed(make_patch(repo, {"a.c": numbered(60, l5="five\n")}), "0001-p.patch")]


RECORD = "*multiworld-applied.json"


@pytest.mark.parametrize("harm", damage.SOME)
@pytest.mark.parametrize("name", ["a.c", "b.c", RECORD, "*index", "*HEAD", "*patched"])
def test_checkout(harm: Damage, name: str, repo: Git, patches: list[PatchFile], tmp_path: Path) -> None:
    """A checkout may be someone's work: it is right, or refused with what to do; never taken as it is."""
    target = tmp_path / "out"
    first = apply_series(repo.folder, "base", patches, target)
    harm(victim(target, name))
    again = _again(repo, patches, target)
    if again is None:
        return
    assert again == first
    assert _content(again) == _content(first)
    assert (target / "a.c").read_bytes() == numbered(60, l5="five\n")
    assert (target / "b.c").read_bytes() == numbered(30)


def _again(repo: Git, patches: list[PatchFile], target: Path) -> AppliedTree | None:
    """Apply again; None when it is refused with what to do."""
    found: list[AppliedTree] = []
    with contextlib.suppress(ToolError):
        found.append(apply_series(repo.folder, "base", patches, target))
    if found:
        return found[0]
    with pytest.raises(ToolError) as caught:
        apply_series(repo.folder, "base", patches, target)
    assert caught.value.remedy
    return None


def _content(applied: AppliedTree) -> list[bytes]:
    return [path.read_bytes() for path in sorted(applied.checkout.glob("*.c"))]


@pytest.mark.parametrize("harm", damage.SOME)
def test_objects_of_a_checkout(harm: Damage, repo: Git, patches: list[PatchFile], tmp_path: Path) -> None:
    target = tmp_path / "out"
    first = apply_series(repo.folder, "base", patches, target)
    # Those of its own; the others it shares with the source.
    own = [path for path in (target / ".git/objects").rglob("??/*") if path.stat().st_nlink == 1]
    assert own
    for path in own:
        harm(path)
    assert _again(repo, patches, target) in (first, None)


def test_bytes_that_the_compiler_read_are_the_commits(repo: Git, patches: list[PatchFile], tmp_path: Path) -> None:
    """git compares times; what changes below the file system it does not see."""
    applied = apply_series(repo.folder, "base", patches, tmp_path / "out")
    check_files(applied, ["a.c", "b.c", "made/by/configure.h"])
    damage.flip(applied.checkout / "b.c")
    with pytest.raises(SourceError, match=r"not those of its commit: b\.c") as caught:
        check_files(applied, ["a.c", "b.c"])
    assert caught.value.remedy
