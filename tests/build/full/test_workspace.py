"""The sources of a workspace follow the patched tree, submodules with them."""

from __future__ import annotations

from pathlib import Path

from build.full import workspace
from build.full.project import Sources
from build.full.workspace import Workspace
from build.git import SUBMODULE
from build.series.apply import AppliedTree
from tests.build.series.repos import IDENT, make_repo, write


def test_a_folder_in_the_place_of_a_submodule(tmp_path: Path) -> None:
    """Its files stay: they are checked out after the submodule is removed."""
    git = make_repo(repo := tmp_path / "repo", {"a": b"a\n"})
    inner = make_repo(repo / "part", {"old": b"old\n"})
    git.out("update-index", "--add", "--cacheinfo", f"{SUBMODULE},{inner.line('rev-parse', 'HEAD')},part")
    git.out("commit", "-q", "-m", "a submodule", env=IDENT)
    sources = Sources(repo, "", "a repository of the test")
    (place := Workspace(tmp_path / "workspace")).folder.mkdir()

    def update() -> list[str]:
        head = git.line("rev-parse", "HEAD")
        workspace.update(place, sources, AppliedTree(repo, head, head, (), ()))
        return sorted(path.name for path in (place.tree / "part").iterdir())

    assert update() == ["old"]
    (repo / "part").rename(tmp_path / "aside")
    write(repo, {"part/new": b"new\n"})
    git.out("rm", "-q", "--cached", "part")
    git.out("add", "-A")
    git.out("commit", "-q", "-m", "a folder", env=IDENT)
    assert update() == ["new"]
    assert update() == ["new"]
