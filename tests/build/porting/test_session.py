"""A port that needs a person: the checkout, going on, giving up, and what goes wrong meanwhile."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from build.errors import UsageError
from build.git import Git
from build.porting import Action
from build.porting.between_trees import Request, port_folder
from build.porting.engine import PatchState
from build.porting.report import PortReport
from build.porting.session import discard
from build.series.model import Method, Verdict
from tests.build.series.repos import commit, make_repo, numbered

from .trees import Files, series_on


@pytest.fixture
def repo(tmp_path: Path) -> Git:
    """Three patches: one in conflict, one that ports, another in conflict."""
    files: Files = {"src/a.c": numbered(40), "src/b.c": numbered(40), "other/c.c": numbered(40)}
    git = make_repo(tmp_path / "repo", files)
    git.out("tag", "old")
    steps: list[Files] = [
        {"src/a.c": numbered(40, l10="mine\n", l30="also mine\n")},
        {"src/b.c": numbered(40, l10="mine\n")},
        {"other/c.c": numbered(40, l10="mine\n")},
    ]
    (tmp_path / "patches").mkdir()
    for number, data in enumerate(series_on(git, steps), 1):
        (tmp_path / "patches" / f"{number}.patch").write_bytes(data)
    upstream = numbered(40, l10="upstream\n")
    commit(git, {"src/a.c": upstream, "src/b.c": b"x\n" + numbered(40), "other/c.c": upstream}, "upstream")
    git.out("tag", "new")
    return git


def run(repo: Git, action: Action = Action.START) -> PortReport:
    root = repo.folder.parent
    return port_folder(Request(root / "patches", f"{repo.folder}@old", f"{repo.folder}@new", root / "out", action))


def checkout(repo: Git) -> Path:
    return repo.folder.parent / "out.port" / "checkout"


def solve(file: Path, text: bytes = b"mine and upstream\n") -> None:
    data = file.read_bytes()
    start, end = data.index(b"<<<<<<< "), data.index(b">>>>>>> ")
    file.write_bytes(data[:start] + text + data[data.index(b"\n", end) + 1 :])


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_first_conflict_is_checked_out_with_markers(repo: Git) -> None:
    report = run(repo)
    assert [patch.state for patch in report.patches] == [
        PatchState.NEEDS_HUMAN,
        PatchState.PORTED,
        PatchState.NEEDS_HUMAN,
    ]
    assert report.edit == ("src/a.c",)
    data = (checkout(repo) / "src" / "a.c").read_bytes()
    assert data.count(b"<<<<<<< ") == 1
    assert b"also mine\n" in data
    assert b"||||||| repo@old\nline 10 of the file\n=======\nmine\n>>>>>>> 1.patch\n" in data
    assert sorted(path.name for path in (repo.folder.parent / "out").iterdir()) == [
        "2.patch",
        "PORT.md",
        "port.json",
        "series",
    ]


def test_series_file_of_an_open_port(repo: Git) -> None:
    """It names what is open; where nothing else was ported, an empty one would say that no patch is left."""
    run(repo)
    out = repo.folder.parent / "out"
    needs = "needs a human: see PORT.md"
    assert (out / "series").read_text().splitlines() == [f"# 1.patch {needs}", f"# 3.patch {needs}", "2.patch"]
    discard(repo.folder.parent / "out.port")
    (repo.folder.parent / "patches" / "2.patch").unlink()
    run(repo)
    assert sorted(path.name for path in out.iterdir()) == ["PORT.md", "port.json"]


def test_going_on_to_the_end(repo: Git) -> None:
    run(repo)
    solve(checkout(repo) / "src" / "a.c")
    report = run(repo, Action.CONTINUE)
    assert report.edit == ("other/c.c",)
    decided = [item for item in report.verdicts if item.method is Method.HUMAN and item.patch == "1.patch"]
    assert [item.verdict for item in decided] == [Verdict.DRIFTED]
    assert "decided by hand" in decided[0].evidence
    solve(checkout(repo) / "other" / "c.c")
    assert run(repo, Action.CONTINUE).complete
    assert not (repo.folder.parent / "out.port").exists()
    out = repo.folder.parent / "out"
    repo.out("checkout", "-q", "--detach", "new")
    for name in (out / "series").read_text().split():
        repo.out("am", "-q", str(out / name), env={"GIT_COMMITTER_NAME": "x", "GIT_COMMITTER_EMAIL": "x@example.org"})
    assert (repo.folder / "src" / "a.c").read_bytes().count(b"mine and upstream\n") == 1


def test_running_twice_keeps_the_edits(repo: Git) -> None:
    run(repo)
    solve(checkout(repo) / "src" / "a.c", b"half way\n")
    report = run(repo)
    assert report.edit == ("src/a.c",)
    assert b"half way\n" in (checkout(repo) / "src" / "a.c").read_bytes()


def test_markers_that_are_left_are_named(repo: Git) -> None:
    run(repo)
    with pytest.raises(UsageError, match=r"src/a\.c:10"):
        run(repo, Action.CONTINUE)


def test_other_changed_files_are_refused_until_staged(repo: Git) -> None:
    run(repo)
    solve(checkout(repo) / "src" / "a.c")
    (checkout(repo) / "src" / "b.c").write_bytes(b"by mistake\n")
    (checkout(repo) / "stray.o").write_bytes(b"\0")
    with pytest.raises(UsageError, match=r"src/b\.c, stray\.o"):
        run(repo, Action.CONTINUE)
    Git(checkout(repo)).out("checkout", "--", "src/b.c")
    Git(checkout(repo)).out("add", "--sparse", "stray.o")
    report = run(repo, Action.CONTINUE)
    assert report.edit == ("other/c.c",)
    assert b"stray.o" in (repo.folder.parent / "out" / "1.patch").read_bytes()


def test_dropping_the_open_hunks(repo: Git) -> None:
    run(repo)
    report = run(repo, Action.DROP)
    assert report.edit == ("other/c.c",)
    patch = (repo.folder.parent / "out" / "1.patch").read_bytes()
    assert b"+also mine\n" in patch
    assert b"+mine\n" not in patch
    report = run(repo, Action.DROP)
    assert [patch.state for patch in report.patches][2] is PatchState.UNNEEDED


def test_giving_up(repo: Git) -> None:
    run(repo)
    state = repo.folder.parent / "out.port"
    discard(state)
    assert not state.exists()
    with pytest.raises(UsageError, match="no port waits"):
        discard(state)
    with pytest.raises(UsageError, match="no port waits"):
        run(repo, Action.CONTINUE)


def half_removed(path: object, *arguments: object, **options: object) -> None:
    """Begin with the repository, as the order of a folder may have it, and be interrupted."""
    for inside in Path(str(path)).glob("checkout/.git"):
        _RMTREE(inside)
        raise KeyboardInterrupt
    _RMTREE(path, *arguments, **options)  # type: ignore[arg-type]


_RMTREE = shutil.rmtree


def end(repo: Git) -> None:
    """Solve both conflicts; the last step removes the state."""
    for name in ("src/a.c", "other/c.c"):
        solve(checkout(repo) / name)
        run(repo, Action.CONTINUE)


def give_up(repo: Git) -> None:
    discard(repo.folder.parent / "out.port")


def start_over(repo: Git) -> None:
    (repo.folder.parent / "patches" / "3.patch").unlink()
    run(repo)


@pytest.mark.parametrize("removing", [end, give_up, start_over])
def test_an_interrupted_removal_of_the_state_is_one(
    removing: Callable[[Git], None], repo: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(repo)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", half_removed)
        with pytest.raises(KeyboardInterrupt):
            removing(repo)
    assert not (repo.folder.parent / "out.port" / "state.json").exists()
    assert run(repo).edit == ("src/a.c",)
    assert list(repo.folder.parent.glob(".*")) == []


def test_what_a_killed_start_left_is_swept(repo: Git) -> None:
    left = repo.folder.parent / ".out.port.abcd.part"
    (left / "port" / "checkout").mkdir(parents=True)
    run(repo)
    assert not left.exists()


@pytest.mark.parametrize("lost", [".git", ".git/HEAD"])
def test_a_repository_around_a_damaged_port_stays_as_it_is(lost: str, repo: Git) -> None:
    """git looks for a repository further up, and the checkout is made with `--force` and cleaned."""
    root = repo.folder.parent
    request = Request(root / "patches", f"{repo.folder}@old", f"{repo.folder}@new", repo.folder / "out")
    port_folder(request)
    state = request.state / "state.json"
    state.write_text(re.sub('"current": *"[^"]*"', '"current":""', state.read_text()))  # killed before the checkout
    broken = request.state / "checkout" / lost
    shutil.rmtree(broken) if broken.is_dir() else broken.unlink()
    (repo.folder / "precious.txt").write_text("in no commit\n")
    (repo.folder / "src" / "b.c").write_text("changed\n")
    before = snapshot(repo.folder)
    for action in (Action.START, Action.CONTINUE, Action.DROP):
        with pytest.raises(UsageError, match="damaged") as caught:
            port_folder(replace(request, action=action))
        assert "--abort" in caught.value.remedy
        assert snapshot(repo.folder) == before
    discard(request.state)
    assert port_folder(request).edit == ("src/a.c",)


def test_other_patches_do_not_overwrite_edits(repo: Git) -> None:
    run(repo)
    file = checkout(repo) / "src" / "a.c"
    solve(file, b"precious\n")
    (repo.folder.parent / "patches" / "2.patch").unlink()
    for action in (Action.START, Action.CONTINUE):
        with pytest.raises(UsageError, match="another"):
            run(repo, action)
    assert b"precious\n" in file.read_bytes()


def test_other_patches_replace_a_checkout_nobody_edited(repo: Git) -> None:
    run(repo)
    (repo.folder.parent / "patches" / "1.patch").unlink()
    assert run(repo).edit == ("other/c.c",)


def test_nothing_decided_is_not_going_on(repo: Git) -> None:
    (repo.folder.parent / "patches" / "1.patch").unlink()
    (repo.folder.parent / "patches" / "3.patch").unlink()
    gone = b"--- a/src/none.c\n+++ b/src/none.c\n@@ -1 +1 @@\n-x\n+y\n"
    (repo.folder.parent / "patches" / "4.patch").write_bytes(gone)
    report = run(repo)
    assert report.edit == ("src/none.c",)
    with pytest.raises(UsageError, match="nothing was decided"):
        run(repo, Action.CONTINUE)
    assert run(repo, Action.DROP).complete


@pytest.mark.parametrize("where", ["build.porting.session.commit_ports", "build.porting.report.to_markdown"])
def test_an_interrupted_run_leaves_everything_as_it_was(repo: Git, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    run(repo)
    solve(checkout(repo) / "src" / "a.c")
    out = repo.folder.parent / "out"
    before = snapshot(out)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(repo, Action.CONTINUE)
    assert snapshot(out) == before
    assert sorted(path.name for path in out.parent.iterdir()) == ["out", "out.port", "patches", "repo"]
    # The edit was taken up or was not; either way it is not lost, and the port goes on behind it.
    action = Action.START if "to_markdown" in where else Action.CONTINUE
    assert run(repo, action).edit == ("other/c.c",)


def test_a_damaged_state_is_said(repo: Git) -> None:
    run(repo)
    (repo.folder.parent / "out.port" / "state.json").write_bytes(b"{")
    with pytest.raises(UsageError, match="damaged"):
        run(repo)
