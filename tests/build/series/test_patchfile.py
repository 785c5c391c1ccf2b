from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from build.errors import PatchError
from build.series.model import ChangeKind
from build.series.patchfile import parse, parse_raw, read, restrip

from .repos import make_patch, make_repo, numbered

HEAD = b"--- a/x.c\n+++ b/x.c\n"
HUNK = b"@@ -1,3 +1,3 @@ section\n one\n-two\n+TWO\n three\n"
GIT = b"diff --git a/x.c b/x.c\nindex 1111111..2222222 100644\n"


def test_plain_and_git_headers_give_the_same_change() -> None:
    plain, git = parse(HEAD + HUNK, "p"), parse(GIT + HEAD + HUNK, "g")
    assert plain.changes[0].hunks[0].lines == git.changes[0].hunks[0].lines
    assert plain.changes[0].path == git.changes[0].path == "x.c"
    assert b"".join(plain.changes[0].hunks[0].lines) == HUNK.partition(b"\n")[2]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"hello\nworld\n", "not a patch"),
        (b"\x7fELF\0\0\0", "not a patch"),
        (HEAD + HUNK[:-7], "inside the hunk of line 3"),
        (HEAD + HUNK[:-3], "middle of a line"),
        (GIT, "before the first hunk"),
        (GIT + b"--- a/x.c\n", "inside a file header"),
        (GIT + HEAD, "before the first hunk"),
        (b"diff --git a/x b/x\n", "before the first hunk"),
        (b"diff --git a/x b/x\nnew file mode 100644\nindex 0000000..1234567\n", "before the content"),
        (HEAD + HUNK.replace(b"-1,3", b"-1,2"), "hunk of line 3"),
        (HEAD + HUNK.replace(b"-1,3", b"-1,4"), "inside the hunk of line 3"),
        (HEAD + HUNK.replace(b"+1,3", b"+1,4") + HUNK, "hunk of line 3"),
        (HEAD + HUNK.replace(b"+1,3 @@", b"+1,3 "), "malformed hunk header"),
        (HEAD + b"@@ -1,0 +1,0 @@\n", "impossible range"),
        (HEAD + b"@@ -1 +1 @@\n one\n", "changes nothing"),
        (HEAD + HUNK + HUNK, "out of order"),
        (HUNK, "without the file header"),
        (b"--- a/x.c\n" + HUNK, "without the file header"),
        (b"diff --cc x.c\nindex 1..2\n", "combined"),
        (b"--- a/x\n+++ /dev/null\n@@ -1 +1 @@\n-a\n+b\n", "/dev/null"),
        (b"diff --git a/x b/x\nold mode 100644\nnew mode 104755\n", "104755"),
        (GIT + b"GIT binary patch\nliteral 5\nzcmZ\n", "malformed line in a binary"),
        (GIT + b"GIT binary patch\nliteral 5\nMcmZ?wbhEHbpMwP^\n", "inside a binary patch"),
    ],
)
def test_what_is_no_whole_patch_is_refused_with_its_line(data: bytes, message: str) -> None:
    with pytest.raises(PatchError, match=rf"bad\.patch:\d+: .*{message}"):
        parse(data, "bad.patch")


@pytest.mark.parametrize(
    "path",
    ["../x", "a/../../x", "/etc/passwd", "a/.git/config", ".GIT/hooks/x", "a/git~1/x", "a//x", "./x", "C:/x"],
)
def test_paths_outside_the_tree_are_refused(path: str) -> None:
    raw = path.encode()
    sections = [
        b"--- a/ok\n+++ b/%s\n" % raw + HUNK,
        b"--- a/%s\n+++ b/ok\n" % raw + HUNK,
        b"diff --git a/ok b/%s\nrename from ok\nrename to %s\n" % (raw, raw),
        b"diff --git a/%s b/%s\nold mode 100644\nnew mode 100755\n" % (raw, raw),
    ]
    if path.startswith("/"):
        sections = [b"--- %s\n+++ %s\n" % (raw, raw) + HUNK]
    for data in sections:
        with pytest.raises(PatchError, match=r"bad\.patch:1: the patch names"):
            parse(data, "bad.patch")


@pytest.mark.parametrize("target", [b"/etc", b"../..", b"a/../../.."])
def test_symbolic_links_out_of_the_tree_are_refused(target: bytes) -> None:
    body = b"--- /dev/null\n+++ b/d/link\n@@ -0,0 +1 @@\n+%s\n\\ No newline at end of file\n" % target
    data = b"diff --git a/d/link b/d/link\nnew file mode 120000\nindex 0000000..1234567\n" + body
    with pytest.raises(PatchError, match="symbolic link"):
        parse(data, "bad.patch")


def test_every_kind_of_change(tmp_path: Path) -> None:
    git = make_repo(tmp_path / "r", {"m": numbered(9), "d": b"d\n", "r": numbered(30), "b": bytes(256)})
    files: dict[str, bytes | None] = {"m": numbered(9, l3="x\n"), "d": None, "r": None, "e": b""}
    files |= {"q ü/r": numbered(30), "b": b"\0" * 100 + b"\1", "n": b"no newline"}
    patch = parse(make_patch(git, files), "p")
    kinds = {change.path: change.kind for change in patch.changes}
    assert kinds == {
        "m": ChangeKind.MODIFIED,
        "d": ChangeKind.DELETED,
        "q ü/r": ChangeKind.RENAMED,
        "e": ChangeKind.ADDED,
        "b": ChangeKind.MODIFIED,
        "n": ChangeKind.ADDED,
    }
    by_path = {change.path: change for change in patch.changes}
    assert by_path["n"].hunks[0].new == [b"no newline"]
    assert by_path["b"].binary
    assert patch.fields["Forwarded"] == "no"


def test_empty_patches_are_empty_not_malformed(tmp_path: Path) -> None:
    git = make_repo(tmp_path / "r", {"m": b"m\n"})
    for data in (b"", b"\n\n", make_patch(git, {}), b"Description: only words\nForwarded: no\n"):
        assert parse(data, "p").changes == ()


def test_dos_line_ends_of_the_patch_and_of_the_content() -> None:
    assert parse((HEAD + HUNK).replace(b"\n", b"\r\n"), "p").crlf
    content = parse(HEAD + HUNK.replace(b"two\n", b"two\r\n"), "p")
    assert not content.crlf
    assert content.changes[0].hunks[0].removed == [b"two\r\n"]


def test_names_of_plain_diffs() -> None:
    dated = b"--- old/x.c.orig\t2020-01-01 10:00:00.000000000 +0100\n+++ old/x.c\t2020-01-01 10:00:01 +0100\n"
    assert parse(dated + HUNK, "p").changes[0].path == "x.c"
    created = b"--- a/n\t1970-01-01 00:00:00 +0000\n+++ b/n\t2020-01-01 00:00:00 +0000\n@@ -0,0 +1 @@\n+n\n"
    assert parse(created, "p").changes[0].kind is ChangeKind.ADDED
    bare = parse_raw(HEAD.replace(b"a/x", b"x").replace(b"b/x", b"x") + HUNK, "p")
    assert restrip(bare, 0).paths == {"x.c"}
    with pytest.raises(PatchError, match="leading folders"):
        restrip(parse_raw(HEAD + HUNK, "p"), 2)


def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PatchError, match="cannot read"):
        read(tmp_path / "none.patch")


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10_000), st.binary(max_size=3))
def test_a_damaged_patch_never_crashes_the_reader(at: int, junk: bytes) -> None:
    data = b"From: a\nSubject: x\n\n---\n x.c | 2 +-\n\n" + GIT + HEAD + HUNK + b"-- \n2.39\n"
    at %= len(data)
    try:
        patch = parse_raw(data[:at] + junk + data[at + 1 :], "p")
    except PatchError as error:
        assert "p:" in error.what  # noqa: PT017 - either outcome is right; a crash is not
    else:
        for change in patch.changes:
            for hunk in change.hunks:
                assert hunk.added or hunk.removed


_TWO_HUNKS = GIT + HEAD + HUNK + HUNK.replace(b"-1,3 +1,3", b"-9,3 +9,3")
_TWO_FILES = GIT + HEAD + HUNK + (GIT + HEAD + HUNK).replace(b"x.c", b"y.c")


@pytest.mark.parametrize("data", [GIT + HEAD + HUNK, HEAD + HUNK, _TWO_HUNKS, _TWO_FILES])
def test_a_patch_cut_off_inside_its_changes_is_refused(data: bytes) -> None:
    """At every byte but between two hunks or files, where nothing tells that another one was to come."""
    assert parse(data, "p").changes
    for keep in range(1, len(data)):
        if not data[:keep].endswith(HUNK):
            with pytest.raises(PatchError):
                parse(data[:keep], "p")
