from __future__ import annotations

from pathlib import Path

import pytest

from build.errors import ReleaseDataError
from build.git import Git
from build.series import manifest as manifests
from build.series.lint import LintReport, lint_series

from .repos import commit, make_patch, make_repo, numbered

MANIFEST = """
[series]
name = "s"
purpose = "test"
[[patch]]
id = "one"
slug = "one"
reason = "because"
applies = ">=1.0"
[[patch]]
id = "two"
slug = "two"
reason = "because"
applies = ">=1.0,<2"
header_changes = [{ path = "b.h", reason = "a comment" }]
[release."1.0"]
base_commit = "1111111111111111111111111111111111111111"
patches = ["one", "two"]
"""


@pytest.fixture
def repo(tmp_path: Path) -> Git:
    return make_repo(tmp_path / "repo", {"a.c": numbered(40), "b.h": numbered(20)})


@pytest.fixture
def folder(tmp_path: Path, repo: Git) -> Path:
    series = tmp_path / "s"
    (series / "1.0").mkdir(parents=True)
    (series / "manifest.toml").write_text(MANIFEST)
    one = make_patch(repo, {"a.c": numbered(40, l5="five\n")})
    two = make_patch(repo, {"b.h": numbered(20, l5="five\n")})
    (series / "1.0" / "0001-one.patch").write_bytes(one)
    (series / "1.0" / "0002-two.patch").write_bytes(two)
    return series


def lint(folder: Path, repo: Git | None = None) -> LintReport:
    return lint_series(folder, (lambda _: (repo.folder, "HEAD")) if repo else None)


def whats(report: LintReport) -> str:
    return "\n".join(f"{item.where}: {item.what}" for item in report.findings)


def edit(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))


def test_a_good_series_has_no_findings_and_was_really_applied(folder: Path, repo: Git) -> None:
    report = lint(folder, repo)
    assert whats(report) == ""
    assert (report.files, report.applied) == (2, ("1.0",))
    assert lint(folder).not_applied == ("1.0",)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"Forwarded: no\n", b"", "DEP-3 field Forwarded"),
        (b"From 0", b"From 1", "zero-commit"),
        (b"1 insertion(+)", b"2 insertions(+)", "diffstat"),
        (b"a/a.c", b"a/../a.c", "names after diff --git"),
        (b"Applied-Upstream: no", b"Applied-Upstream: 3.0", "manifest says it is not"),
        (b"@@ -2,7", b"@@ -2,6", "does not fit"),
        (b" 100644\n", b" 100644\nrename", "hunk"),
    ],
)
def test_each_rule_sees_its_violation(folder: Path, old: bytes, new: bytes, message: str) -> None:
    edit(folder / "1.0" / "0001-one.patch", old, new)
    assert message in whats(lint(folder))


def test_trailing_garbage_is_seen(folder: Path) -> None:
    path = folder / "1.0" / "0001-one.patch"
    path.write_bytes(path.read_bytes() + b"-- \n2.39.5\n")
    assert "text after its last hunk" in whats(lint(folder))


def test_an_undeclared_header_change_is_seen(folder: Path) -> None:
    edit(folder / "manifest.toml", b'header_changes = [{ path = "b.h", reason = "a comment" }]', b"")
    assert "changes the header b.h" in whats(lint(folder))


def test_coverage_and_files(folder: Path) -> None:
    edit(folder / "manifest.toml", b'"one", "two"', b'"one"')
    text = whats(lint(folder))
    assert "'two' covers the release" in text
    assert "the manifest does not name this file" in text
    edit(folder / "manifest.toml", b'["one"]', b'["one", "two"]')
    (folder / "1.0" / "0002-two.patch").unlink()
    assert "there is no file 1.0/0002-two.patch" in whats(lint(folder))


def test_a_slug_with_a_typo_names_the_manifest_and_the_nearest_file(folder: Path) -> None:
    edit(folder / "manifest.toml", b'slug = "two"', b'slug = "tow"')
    with pytest.raises(ReleaseDataError, match=r"s/manifest\.toml: patch 'two' has the slug 'tow'") as caught:
        manifests.patches_of("1.0", ["s"], folder.parent)
    assert "1.0/0002-two.patch" in caught.value.cause
    assert str(folder / "manifest.toml") in caught.value.remedy
    assert "the nearest file is 1.0/0002-two.patch" in whats(lint(folder))


def test_declared_missing_is_still_a_finding(folder: Path) -> None:
    edit(folder / "manifest.toml", b'patches = ["one", "two"]', b'patches = ["one"]\nmissing = ["two"]')
    (folder / "1.0" / "0002-two.patch").unlink()
    assert "'two' covers the release" in whats(lint(folder))


def test_a_file_outside_its_range_is_seen(folder: Path) -> None:
    edit(folder / "manifest.toml", b">=1.0,<2", b">=2,<3")
    assert "excludes it" in whats(lint(folder))


def test_a_symbolic_link_is_seen(folder: Path) -> None:
    (folder / "1.0" / "0003-link.patch").symlink_to("0001-one.patch")
    assert "is a symbolic link" in whats(lint(folder))


def test_an_offset_and_other_bytes_are_seen(folder: Path, repo: Git) -> None:
    commit(repo, {"a.c": b"one more\n" + numbered(40)}, "shift")
    text = whats(lint(folder, repo))
    assert "offset of 1" in text
    assert "other bytes" in text


def test_a_patch_that_does_not_apply_is_seen(folder: Path, repo: Git) -> None:
    commit(repo, {"a.c": numbered(40, l5="drift\n")}, "drift")
    assert "does not fit the tree" in whats(lint(folder, repo))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('reason = "because"', 'reason = " "', r"matching regex .* `\$\.patch\[0\]\.reason`"),
        ('id = "two"', 'id = "one"', "used twice"),
        (">=1.0,<2", "about 1", "Invalid specifier"),
        ('["one", "two"]', '["one", "three"]', "unknown patch 'three'"),
        ("base_commit = ", "base = ", "unknown field"),
        ("1111111111111111111111111111111111111111", "v1.0", r"base_commit"),
        ('release."1.0"', 'release."one"', "Invalid version"),
    ],
)
def test_a_manifest_that_cannot_be_is_refused(old: str, new: str, message: str) -> None:
    assert old in MANIFEST
    with pytest.raises(ReleaseDataError, match=message):
        manifests.parse(MANIFEST.replace(old, new, 1).encode(), "s/manifest.toml")


PARAMETERS = """
[[parameter]]
name = "HOME"
type = "path"
default = "."
usage = "a folder"
[[parameter]]
name = "FAST"
type = "boolean"
default = "0"
usage = "a switch"
excludes = ["SAFE"]
[[parameter]]
name = "SAFE"
type = "boolean"
default = "0"
usage = "a switch"
only_with = ["FAST"]
[[parameter]]
name = "LIB"
type = "path"
default = "{HOME}/lib"
usage = "a folder"
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('excludes = ["SAFE"]', 'excludes = ["SAFER"]', "'FAST' names 'SAFER', which is not a boolean"),
        ('only_with = ["FAST"]', 'only_with = ["HOME"]', "'SAFE' names 'HOME', which is not a boolean"),
        ("{HOME}", "{ROOT}", "default of 'LIB' names 'ROOT', which is not an earlier path"),
        ('name = "SAFE"', 'name = "FAST"', "'FAST' is there twice"),
        ('default = "0"', 'default = "no"', "default of 'FAST' is neither 0 nor 1"),
    ],
)
def test_variables_that_cannot_be_are_refused_by_name(folder: Path, old: str, new: str, message: str) -> None:
    text = MANIFEST + PARAMETERS
    manifests.parse(text.encode(), "s/manifest.toml")
    assert old in text
    (folder / "manifest.toml").write_text(text.replace(old, new, 1))
    with pytest.raises(ReleaseDataError, match=message):
        manifests.load(folder)
    assert message in whats(lint(folder))


def test_variables_and_patches_name_each_other(folder: Path, repo: Git) -> None:
    (folder / "manifest.toml").write_text(MANIFEST + PARAMETERS)
    changed = make_patch(repo, {"a.c": numbered(40, l5="@LIB@\n"), "new.c": b"@FAST@ @LIP@\n"})
    (folder / "1.0" / "0001-one.patch").write_bytes(changed)
    found = whats(lint(folder))
    assert "s/1.0: no patch has @SAFE@" in found
    assert "0001-one.patch: has @LIP@, which the manifest does not have" in found
    assert "0001-one.patch: has @LIB@ in a file that it does not add" in found
    assert "@FAST@" not in found
    assert "@HOME@" not in found  # it is part of a default
