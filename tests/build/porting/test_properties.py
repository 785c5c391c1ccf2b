"""Of every port: nothing is lost, what is written applies and exports to itself, the same tree is the identity."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from build.git import Git
from build.porting.engine import PatchState, port_series
from build.porting.session import commit_ports, render
from build.porting.trees import Tree
from build.series.apply import commit_patches
from build.series.commits import export_commit, export_series
from build.series.model import Verdict
from build.series.patchfile import parse
from tests.build.series.repos import commit, make_repo

SLOW = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
# Few distinct lines, so that files are full of equal ones.
LINE = st.sampled_from([f"{word} {n};\n" for word in ("call", "  step", "}", "if value") for n in range(6)])
BODY = st.lists(LINE, min_size=8, max_size=40)
EDIT = st.tuples(st.integers(0, 100), st.integers(0, 3), st.lists(LINE, max_size=3))


def edited(lines: list[str], edits: list[tuple[int, int, list[str]]]) -> list[str]:
    result = list(lines)
    for at, count, new in edits:
        place = at % (len(result) + 1)
        result[place : place + count] = new
    return result


def encoded(lines: list[str], end: bool) -> bytes:
    data = "".join(lines).encode()
    return data if end else data.rstrip(b"\n")


CASE = st.tuples(
    BODY,
    st.lists(st.lists(EDIT, min_size=1, max_size=3), min_size=1, max_size=3),
    st.lists(EDIT, max_size=3),
    st.booleans(),
)


def build(
    folder: Path, case: tuple[list[str], list[list[tuple[int, int, list[str]]]], list[tuple[int, int, list[str]]], bool]
) -> tuple[Git, list[bytes]]:
    """A repository with tags `old` and `new`, and a series of canonical patches for `old`."""
    body, steps, upstream, end = case
    git = make_repo(folder, {"f.c": encoded(body, end), "other": b"x\n"})
    git.out("tag", "old")
    made, current = [], body
    for step in steps:
        current = edited(current, step)
        made.append(export_commit(git, commit(git, {"f.c": encoded(current, end)}, "change")))
    git.out("reset", "-q", "--hard", "old")
    commit(git, {"f.c": encoded(edited(body, upstream), end), "other": b"y\n"}, "upstream")
    git.out("tag", "new")
    return git, made


@SLOW
@given(CASE)
def test_what_is_ported_applies_and_exports_to_itself(case: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        git, made = build(Path(folder), case)
        old, new = (Tree(git, git.resolve(tag), tag) for tag in ("old", "new"))
        patches = [parse(data, f"{n}.patch") for n, data in enumerate(made)]
        ports = port_series(patches, old, new)
        for patch, port in zip(patches, ports, strict=True):
            hunks = sum(max(1, len(change.hunks)) for change in patch.changes)
            assert len(port.verdicts) == hunks
        if any(port.state is PatchState.NEEDS_HUMAN for port in ports):
            return
        committed = commit_ports(git, new.commit, ports)
        written = [render(git, item) for item in committed if item.port.state is PatchState.PORTED]
        again = [parse(data, f"{n}.patch") for n, data in enumerate(written)]
        head, verdicts = commit_patches(git, new.commit, again)
        assert {item.verdict for item in verdicts} <= {Verdict.CLEAN}
        assert export_series(git, new.commit, head) == written


@SLOW
@given(CASE)
def test_porting_to_the_same_tree_is_the_identity(case: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        git, made = build(Path(folder), case)
        tree = Tree(git, git.resolve("old"), "old")
        ports = port_series([parse(data, f"{n}.patch") for n, data in enumerate(made)], tree, tree)
        assert all(port.identical for port in ports)
        assert [render(git, item) for item in commit_ports(git, tree.commit, ports)] == made


@SLOW
@given(CASE)
def test_a_conflict_changes_nothing_but_its_markers(case: Any) -> None:
    """Taking the new tree's side of every conflict gives exactly what was placed."""
    from build.porting.session import _WHOLE

    with tempfile.TemporaryDirectory() as folder:
        git, made = build(Path(folder), case)
        old, new = (Tree(git, git.resolve(tag), tag) for tag in ("old", "new"))
        for port in port_series([parse(made[0], "1.patch")], old, new):
            for path, state in port.marked.items():
                placed = port.files[path]
                assert state is not None
                assert placed is not None
                assert _WHOLE.sub(rb"\1", state.data).rstrip(b"\n") == placed.data.rstrip(b"\n")
