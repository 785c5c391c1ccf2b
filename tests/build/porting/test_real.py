"""The benchmark with human truth, on a little source package: stacks, cases, the judge, and what a run keeps."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from build.series.model import Verdict
from docs.bench.porting.cases import Kind, RealCase, cases
from docs.bench.porting.judge import files_of, judge
from docs.bench.porting.real import measure, others, promises, tables_of, wrong
from docs.bench.porting.stacks import Archive, Package, Source, load, rebuild
from docs.bench.porting.tools import OURS, Result

from .code import replaced, source

OLD = source()
NEW = "// a new release\n" + source("beta", "alpha", "gamma", "delta", "epsilon", "zeta")
DEP3 = "Description: %s\nOrigin: %s\n\n"


def line(name: str, n: int) -> str:
    return f"  step_{name}_{n}(value, {n}); // part {n} of {name}\n"


def checked(text: str, name: str) -> str:
    return replaced(text, (line(name, 5), line(name, 5) + f"  check_the_state_of_{name}(value, 17);\n"))


def diff(old: str, new: str) -> str:
    import difflib

    return "".join(difflib.unified_diff(old.splitlines(True), new.splitlines(True), "a/a.c", "b/a.c"))


def tarball(path: Path, files: dict[str, str]) -> Archive:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            member.mtime = 1_700_000_000
            archive.addfile(member, io.BytesIO(text.encode()))
    return Archive(name=path.name, sha256=hashlib.sha256(path.read_bytes()).hexdigest())


def package(place: Path) -> Package:
    """Two releases: one patch that was refreshed, one that upstream took, one that stayed, one solved in another way.

    The last repeats a line. That the new release has the line as well does not tell that it has the patch.
    """
    place.mkdir(parents=True, exist_ok=True)
    gamma, zeta = checked(OLD, "gamma"), checked(checked(OLD, "gamma"), "zeta")
    new = checked(NEW, "zeta")
    again = replaced(zeta, (line("beta", 7), line("beta", 7) + line("alpha", 2) + "  not_in_the_new_release(value);\n"))
    old_patches = {
        "0001-gamma.patch": DEP3 % ("gamma", "vendor") + diff(OLD, gamma),
        "0002-zeta.patch": DEP3 % ("zeta", "upstream, https://example.org/commit/1") + diff(gamma, zeta),
        "0004-again.patch": DEP3 % ("again", "upstream, https://example.org/commit/2") + diff(zeta, again),
        "0003-same.patch": DEP3 % ("a file", "vendor") + "--- /dev/null\n+++ b/extra.c\n@@ -0,0 +1 @@\n+int extra;\n",
    }
    new_patches = {
        "0002-gamma.patch": DEP3 % ("gamma", "vendor") + diff(new, checked(new, "gamma")),
        "0003-same.patch": old_patches["0003-same.patch"],
    }

    def side(version: str, suite: str, text: str, patches: dict[str, str]) -> Source:
        orig = tarball(place / f"little_{version}.orig.tar.gz", {f"little-{version}/a.c": text})
        debian = {f"debian/patches/{name}": patch for name, patch in patches.items()}
        debian["debian/patches/series"] = "".join(f"{name}\n" for name in patches)
        made = tarball(place / f"little_{version}.debian.tar.gz", debian)
        return Source(suite=suite, version=version, orig=orig, debian=made)

    return Package(name="little", old=side("1", "old", OLD, old_patches), new=side("2", "new", new, new_patches))


@pytest.fixture
def little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MULTIWORLD_CACHE", str(tmp_path / "cache"))
    return rebuild(package(tmp_path / "pool"), lambda *_: tmp_path / "pool")


def by_kind(little: Path) -> dict[Kind, RealCase]:
    return {case.kind: case for case in cases(little)}


def test_a_stack_is_rebuilt_and_its_patches_are_paired(little: Path) -> None:
    found = by_kind(little)
    assert {kind: case.patch.name for kind, case in found.items()} == {
        Kind.REFRESHED: "0001-gamma.patch",
        Kind.UPSTREAM: "0002-zeta.patch",
    }
    refreshed = found[Kind.REFRESHED].scored
    assert [(hunk.path, hunk.number, len(hunk.edits)) for hunk in refreshed] == [("a.c", 1, 1)]


def test_the_judge_knows_right_wrong_and_left(little: Path) -> None:
    found = by_kind(little)
    case, dropped = found[Kind.REFRESHED], found[Kind.UPSTREAM]
    base = files_of(case.new, case.paths)
    right = checked(base["a.c"].decode(), "gamma").encode()
    assert judge(case, {**base, "a.c": right}) == [Result.RIGHT]
    assert judge(case, base) == [Result.LEFT]
    moved = base["a.c"] + b"  check_the_state_of_gamma(value, 17);\n"
    assert judge(case, {**base, "a.c": moved}) == [Result.WRONG]
    twice = files_of(dropped.new, dropped.paths)
    assert judge(dropped, twice) == [Result.LEFT]
    assert judge(dropped, {"a.c": twice["a.c"] + b"  check_the_state_of_zeta(value, 17);\n"}) == [Result.WRONG]


@pytest.mark.patch
def test_a_conflict_of_another_tool_is_a_hunk_left(little: Path) -> None:
    for case in by_kind(little).values():
        for files in others(case).values():
            assert all(b"<<<<<<<" not in data for data in files.values())
            assert all(result is not Result.WRONG for result in judge(case, files))


@pytest.mark.patch
def test_tools_are_measured_and_the_promises_are_judged(little: Path) -> None:
    scores = measure("little", little)
    hunks = {score.kind: score.hunks[0] for score in scores}
    assert hunks[Kind.REFRESHED].results[OURS] is Result.RIGHT
    assert hunks[Kind.UPSTREAM].verdict is Verdict.UPSTREAM
    assert promises(scores)["placed wrong: 0 (0)"]
    assert not list(wrong(scores))
    assert len(tables_of(scores).renderables) == 2
    assert not promises([])["recognised as upstream: 0.0% of hunks (>= 60%)"]


def test_the_list_names_every_archive_once_with_its_digest() -> None:
    known = load()
    assert len({item.name for item in known}) >= 30
    digests: dict[str, str] = {}
    for item in known:
        for archive in item.archives:
            assert len(archive.sha256) == 64
            assert digests.setdefault(archive.name, archive.sha256) == archive.sha256
