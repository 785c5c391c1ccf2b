from __future__ import annotations

from pathlib import Path

import pytest

from build.errors import PatchError, SourceError, UsageError
from build.git import Git
from build.series.apply import apply_series
from build.series.commits import export_series
from build.series.model import ChangeKind, PatchFile, Verdict

from .repos import commit, make_patch, make_repo, numbered, parsed


@pytest.fixture
def repo(tmp_path: Path) -> Git:
    files: dict[str, bytes | None] = {
        "a.c": numbered(60),
        "b.c": numbered(30),
        "sub/c.h": b"int c;\n",
        "bin": bytes(range(256)),
    }
    return make_repo(tmp_path / "source", files)


def series(repo: Git) -> list[PatchFile]:
    """Every kind of change git has, one patch each, in sequence."""
    base = repo.line("rev-parse", "HEAD")
    steps: list[tuple[str, dict[str, bytes | None]]] = [
        ("two hunks", {"a.c": numbered(60, l5="five\n", l40="forty\n")}),
        ("[c10d] new file: ünïcode", {"new/n.c": b"new\r\nfile without end"}),
        ("delete", {"sub/c.h": None}),
        ("rename", {"b.c": None, "moved/b.c": numbered(30, l3="three\n")}),
        ("binary", {"bin": bytes(reversed(range(256)))}),
        ("empty new file", {"empty": b""}),
        ("nothing", {}),
    ]
    from build.series.commits import export_commit

    found = [
        parsed(export_commit(repo, commit(repo, files, text)), f"{n:04d}-p.patch")
        for n, (text, files) in enumerate(steps, 1)
    ]
    (repo.folder / "a.c").chmod(0o755)
    found.append(parsed(export_commit(repo, commit(repo, {}, "mode")), "0008-p.patch"))
    repo.out("reset", "-q", "--hard", base)
    return found


def test_apply_then_export_gives_the_same_bytes(repo: Git, tmp_path: Path) -> None:
    patches = series(repo)
    applied = apply_series(repo.folder, "base", patches, tmp_path / "out")
    again = export_series(Git(applied.checkout), applied.base, applied.head)
    assert again == [patch.data for patch in patches]
    assert {item.verdict for item in applied.verdicts} == {Verdict.CLEAN}
    kinds = {item.path: item.kind for item in applied.changed}
    assert kinds["moved/b.c"] is ChangeKind.RENAMED
    assert kinds["sub/c.h"] is ChangeKind.DELETED
    assert (applied.checkout / "a.c").stat().st_mode & 0o100
    assert (applied.checkout / "new/n.c").read_bytes() == b"new\r\nfile without end"


def test_ids_do_not_depend_on_time_or_place(repo: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patches = series(repo)
    first = apply_series(repo.folder, "base", patches, tmp_path / "one")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Someone Else")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert apply_series(repo.folder, "base", patches, tmp_path / "two").head == first.head


def test_a_second_run_changes_nothing_and_a_changed_series_replaces_all(repo: Git, tmp_path: Path) -> None:
    patches = series(repo)
    target = tmp_path / "out"
    first = apply_series(repo.folder, "base", patches, target)
    stamp = (target / "a.c").stat().st_mtime_ns
    assert apply_series(repo.folder, "base", patches, target) == first
    assert (target / "a.c").stat().st_mtime_ns == stamp
    shorter = apply_series(repo.folder, "base", patches[:1], target)
    assert shorter.head != first.head
    assert (target / "b.c").exists()


def test_the_source_stays_as_it_was(repo: Git, tmp_path: Path) -> None:
    patches = series(repo)

    def snapshot() -> dict[str, bytes]:
        # Not the dates: git freshens those of objects that it would have written again.
        return {str(p): p.read_bytes() for p in repo.folder.rglob("*") if p.is_file()}

    before = snapshot()
    apply_series(repo.folder, "base", patches, tmp_path / "out")
    assert snapshot() == before


def test_edits_in_the_checkout_are_not_lost(repo: Git, tmp_path: Path) -> None:
    patches = series(repo)
    target = tmp_path / "out"
    apply_series(repo.folder, "base", patches, target)
    (target / "a.c").write_text("mine")
    with pytest.raises(UsageError, match=r"a\.c"):
        apply_series(repo.folder, "base", patches[:1], target)
    assert (target / "a.c").read_text() == "mine"


@pytest.mark.parametrize("count", [2, 1])
def test_commits_in_the_checkout_are_not_lost(repo: Git, tmp_path: Path, count: int) -> None:
    """Neither by the same series nor by another one."""
    patches, target = series(repo), tmp_path / "out"
    apply_series(repo.folder, "base", patches, target)
    mine = Git(target)
    mine.out("-c", "user.name=me", "-c", "user.email=me@here", "commit", "-q", "--allow-empty", "-m", "mine")
    head = mine.line("rev-parse", "HEAD")
    with pytest.raises(UsageError, match="1 commits that this command did not make"):
        apply_series(repo.folder, "base", patches[:count], target)
    assert mine.line("rev-parse", "HEAD") == head


def test_a_folder_of_someone_else_is_not_replaced(repo: Git, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("x")
    with pytest.raises(UsageError):
        apply_series(repo.folder, "base", series(repo), tmp_path / "out")


def test_an_offset_is_named(repo: Git, tmp_path: Path) -> None:
    patch = parsed(make_patch(repo, {"a.c": numbered(60, l40="forty\n")}))
    commit(repo, {"a.c": b"one more\n" + numbered(60)}, "shift")
    applied = apply_series(repo.folder, "HEAD", [patch], tmp_path / "out")
    assert [(v.verdict, v.offset, v.line) for v in applied.verdicts] == [(Verdict.OFFSET, 1, 38)]


def test_fuzz_is_refused(repo: Git, tmp_path: Path) -> None:
    patch = parsed(make_patch(repo, {"a.c": numbered(60, l40="forty\n")}))
    commit(repo, {"a.c": numbered(60, l37="other context\n")}, "drift")
    with pytest.raises(PatchError, match="hunk 1"):
        apply_series(repo.folder, "HEAD", [patch], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


def test_a_place_that_is_not_unique_is_refused(repo: Git, tmp_path: Path) -> None:
    block = b"{\n  a;\n  b;\n  c;\n}\n"
    commit(repo, {"d.c": b"top\n" + block + b"mid\n" + block}, "two blocks")
    data = make_patch(repo, {"d.c": b"top\n" + block.replace(b"b", b"B") + b"mid\n" + block})
    body = data[: data.index(b"@@ ")] + b"@@ -20,5 +20,5 @@\n {\n   a;\n-  b;\n+  B;\n   c;\n }\n"
    with pytest.raises(PatchError, match="2 places"):
        apply_series(repo.folder, "HEAD", [parsed(body)], tmp_path / "out")


def test_a_patch_through_a_symbolic_link_of_the_tree_is_refused(repo: Git, tmp_path: Path) -> None:
    (repo.folder / "link").symlink_to("sub")
    commit(repo, {}, "link")
    data = make_patch(repo, {"sub/x.c": b"x\n"}).replace(b"sub/x.c", b"link/x.c")
    with pytest.raises(PatchError, match="symbolic link"):
        apply_series(repo.folder, "HEAD", [parsed(data)], tmp_path / "out")


def test_no_repository_and_no_such_commit(repo: Git, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="not a git repository"):
        apply_series(tmp_path / "nowhere", "HEAD", [], tmp_path / "out")
    with pytest.raises(SourceError, match="no revision"):
        apply_series(repo.folder, "v9", [], tmp_path / "out")


def test_a_shallow_source_works(repo: Git, tmp_path: Path) -> None:
    patches = series(repo)[:1]
    commit(repo, {}, "second")
    clone = tmp_path / "clone"
    origin = f"file://{repo.folder}"
    Git(tmp_path).out("clone", "-q", "--depth=1", origin, str(clone))
    applied = apply_series(clone, "HEAD", patches, tmp_path / "out")
    assert (applied.checkout / "a.c").is_file()
    assert Git(applied.checkout).out("status", "--porcelain") == b""
