"""Every kind of change to a file: new, deleted, renamed, mode, binary, submodule, moved, gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from build.git import Git
from build.porting.engine import PatchState, port_series
from build.porting.trees import Tree, open_tree
from build.series.model import Method, Verdict
from build.series.patchfile import parse
from tests.build.series.repos import IDENT, commit, make_patch, make_repo, numbered

from .code import function, replaced, source
from .trees import Files, old_and_new, parsed, port_one, series_on

OLD = source()
GAMMA = "  step_gamma_5(value, 5); // part 5 of gamma\n"
FIX = "  check_patched(value);\n"
PATCHED = replaced(OLD, (GAMMA, GAMMA + FIX))
BINARY, BINARY_2 = bytes(range(256)) * 8, bytes(reversed(range(256))) * 8


def test_a_renamed_file_is_followed(tmp_path: Path) -> None:
    edited = replaced(OLD, ("#include <second.h>\n", "#include <second_v2.h>\n"))
    port = port_one(
        tmp_path,
        {"src/a.cpp": OLD.encode()},
        {"src/a.cpp": PATCHED.encode()},
        {"src/a.cpp": None, "lib/b.cpp": edited.encode()},
    )
    (verdict,) = port.verdicts
    assert (verdict.verdict, verdict.method, verdict.new_path) == (Verdict.MOVED, Method.MOVED_FILE, "lib/b.cpp")
    state = port.files["lib/b.cpp"]
    assert state is not None
    assert state.data.decode() == replaced(edited, (GAMMA, GAMMA + FIX))
    assert port.state is PatchState.PORTED


def test_a_split_file_is_followed(tmp_path: Path) -> None:
    rest = OLD.replace(function("gamma") + "\n", "")
    new: Files = {"a.cpp": rest.encode(), "gamma.cpp": ("#include <split.h>\n\n" + function("gamma")).encode()}
    port = port_one(tmp_path, {"a.cpp": OLD.encode()}, {"a.cpp": PATCHED.encode()}, new)
    (verdict,) = port.verdicts
    assert (verdict.verdict, verdict.new_path) == (Verdict.MOVED, "gamma.cpp")


def test_two_hunks_of_a_split_file_go_to_two_files(tmp_path: Path) -> None:
    zeta = "  step_zeta_5(value, 5); // part 5 of zeta\n"
    rest = OLD.replace(function("gamma") + "\n", "")
    new: Files = {"a.cpp": rest.encode(), "gamma.cpp": ("#include <split.h>\n\n" + function("gamma")).encode()}
    patched = replaced(PATCHED, (zeta, zeta + FIX.replace("patched", "zeta")))
    port = port_one(tmp_path, {"a.cpp": OLD.encode()}, {"a.cpp": patched.encode()}, new)
    assert [(v.verdict, v.new_path) for v in port.verdicts] == [(Verdict.MOVED, "gamma.cpp"), (Verdict.OFFSET, "")]


def test_a_file_that_is_gone_says_since_when(tmp_path: Path) -> None:
    port = port_one(tmp_path, {"a.cpp": OLD.encode(), "b": b"b\n"}, {"a.cpp": PATCHED.encode()}, {"a.cpp": None})
    (verdict,) = port.verdicts
    assert verdict.verdict is Verdict.GONE
    assert "since" in verdict.evidence
    assert port.state is PatchState.NEEDS_HUMAN


@pytest.mark.parametrize(
    ("present", "verdict"),
    [
        (None, Verdict.CLEAN),
        (b"new file\nsecond line\n", Verdict.UPSTREAM),
        (b"new   file second\n line", Verdict.UPSTREAM),
        (b"something else\n", Verdict.CONFLICT),
    ],
)
def test_a_new_file(tmp_path: Path, present: bytes | None, verdict: Verdict) -> None:
    new: Files = {"b": b"changed\n"} if present is None else {"n.txt": present}
    port = port_one(tmp_path, {"b": b"b\n"}, {"n.txt": b"new file\nsecond line\n"}, new)
    assert [item.verdict for item in port.verdicts] == [verdict]
    if verdict is Verdict.CONFLICT:
        state = port.marked["n.txt"]
        assert state is not None
        assert b"<<<<<<< new" in state.data


def test_a_new_file_below_what_is_a_file_now(tmp_path: Path) -> None:
    port = port_one(tmp_path, {"b": b"b\n"}, {"dir/n.txt": b"new\n"}, {"dir": b"a file\n"})
    assert port.verdicts[0].verdict is Verdict.CONFLICT


@pytest.mark.parametrize(
    ("new", "verdict"),
    [
        ({"other": b"x\n"}, Verdict.CLEAN),
        ({"gone.txt": None}, Verdict.UPSTREAM),
        ({"gone.txt": b"changed since\n"}, Verdict.CONFLICT),
    ],
)
def test_a_deleted_file(tmp_path: Path, new: Files, verdict: Verdict) -> None:
    port = port_one(tmp_path, {"gone.txt": b"one\ntwo\n", "k": b"k\n"}, {"gone.txt": None}, new)
    assert [item.verdict for item in port.verdicts] == [verdict]


def test_a_rename_with_an_edit(tmp_path: Path) -> None:
    old: Files = {"a.cpp": OLD.encode(), "k": b"k\n"}
    change: Files = {"a.cpp": None, "b.cpp": PATCHED.encode()}
    port = port_one(tmp_path, old, change, {"a.cpp": ("// top\n" + OLD).encode()})
    assert [(v.hunk, v.verdict) for v in port.verdicts] == [(0, Verdict.CLEAN), (1, Verdict.OFFSET)]
    assert port.files["a.cpp"] is None
    state = port.files["b.cpp"]
    assert state is not None
    assert state.data.decode() == "// top\n" + PATCHED


def test_a_rename_that_upstream_made_as_well(tmp_path: Path) -> None:
    old: Files = {"a.cpp": OLD.encode(), "k": b"k\n"}
    change: Files = {"a.cpp": None, "b.cpp": PATCHED.encode()}
    port = port_one(tmp_path, old, change, {"a.cpp": None, "b.cpp": OLD.encode()})
    assert [(v.hunk, v.verdict) for v in port.verdicts] == [(0, Verdict.UPSTREAM), (1, Verdict.CLEAN)]


def test_binary_files(tmp_path: Path) -> None:
    old: Files = {"x.bin": BINARY, "k": b"k\n"}
    kinds: list[tuple[Files, Verdict]] = [
        ({"k": b"other\n"}, Verdict.CLEAN),
        ({"x.bin": BINARY_2}, Verdict.UPSTREAM),
        ({"x.bin": b"\0a"}, Verdict.CONFLICT),
    ]
    for number, (new, verdict) in enumerate(kinds):
        port = port_one(tmp_path / str(number), old, {"x.bin": BINARY_2}, new)
        assert [item.verdict for item in port.verdicts] == [verdict]
        if verdict is Verdict.CLEAN:
            state = port.files["x.bin"]
            assert state is not None
            assert state.data == BINARY_2


def test_a_binary_patch_without_content_is_left_to_a_human(tmp_path: Path) -> None:
    _, old, new = old_and_new(tmp_path, {"x.bin": BINARY}, {"k": b"k\n"})
    data = b"diff --git a/x.bin b/x.bin\nindex 1111111..2222222 100644\nBinary files a/x.bin and b/x.bin differ\n"
    port = port_series([parse(data, "p")], old, new)[0]
    assert port.verdicts[0].verdict is Verdict.CONFLICT


def test_modes(tmp_path: Path) -> None:
    for number, (mode_now, verdict) in enumerate([(0o644, Verdict.CLEAN), (0o755, Verdict.UPSTREAM)]):
        git, old, _ = old_and_new(tmp_path / str(number), {"run.sh": b"#!/bin/sh\n"}, {"k": b"k\n"})
        (git.folder / "run.sh").chmod(0o755)
        patch = make_patch(git, {})
        (git.folder / "run.sh").chmod(mode_now)
        commit(git, {"k2": b"k\n"}, "upstream")
        new = Tree(git, git.resolve("HEAD"), "new")
        port = port_series(parsed([patch]), old, new)[0]
        assert [item.verdict for item in port.verdicts] == [verdict]


def test_a_submodule(tmp_path: Path) -> None:
    git = make_repo(tmp_path, {"k": b"k\n"})

    def point(commit_id: str) -> str:
        git.out("update-index", "--add", "--cacheinfo", f"160000,{commit_id},third_party/x")
        git.out("commit", "-q", "-m", "point", env=IDENT)
        return git.line("rev-parse", "HEAD")

    ids = [character * 40 for character in "123"]
    old, patched = point(ids[0]), point(ids[1])
    from build.series.commits import export_commit

    patch = parse(export_commit(git, patched), "p")
    for target, verdict in ((ids[0], Verdict.CLEAN), (ids[1], Verdict.UPSTREAM), (ids[2], Verdict.CONFLICT)):
        git.out("reset", "-q", "--soft", old)
        new = point(target) if target != ids[0] else old
        port = port_series([patch], Tree(git, old, "old"), Tree(git, new, "new"))[0]
        assert [item.verdict for item in port.verdicts] == [verdict]


def test_an_empty_patch_goes_on_as_it_is(tmp_path: Path) -> None:
    git, old, new = old_and_new(tmp_path, {"a": b"a\n"}, {"a": b"b\n"})
    port = port_series(parsed([make_patch(git, {})]), old, new)[0]
    assert (port.state, port.identical) == (PatchState.PORTED, True)


def test_later_patches_stand_on_earlier_ones(tmp_path: Path) -> None:
    second = replaced(PATCHED, (FIX, FIX + "  and_more(value);\n"))
    git, old, new = old_and_new(tmp_path, {"a.cpp": OLD.encode()}, {"a.cpp": ("// top\n" + OLD).encode()})
    steps: list[Files] = [{"a.cpp": PATCHED.encode()}, {"a.cpp": second.encode()}]
    ports = port_series(parsed(series_on(git, steps)), old, new)
    assert [v.verdict for port in ports for v in port.verdicts] == [Verdict.OFFSET, Verdict.OFFSET]
    state = ports[1].files["a.cpp"]
    assert state is not None
    assert state.data.decode() == "// top\n" + second


def test_a_failing_patch_does_not_stop_the_others(tmp_path: Path) -> None:
    git, old, new = old_and_new(tmp_path, {"a": numbered(30), "b": numbered(30)}, {"a": numbered(30, l10="upstream\n")})
    steps: list[Files] = [{"a": numbered(30, l10="mine\n")}, {"b": numbered(30, l10="mine\n")}]
    ports = port_series(parsed(series_on(git, steps)), old, new)
    assert [port.state for port in ports] == [PatchState.NEEDS_HUMAN, PatchState.PORTED]


def test_a_hunk_that_is_not_for_the_old_tree_says_so(tmp_path: Path) -> None:
    git, old, new = old_and_new(tmp_path, {"a.cpp": OLD.encode()}, {"k": b"k\n"})
    commit(git, {"a.cpp": replaced(OLD, (GAMMA, "  foreign_line(value, other);\n")).encode()}, "elsewhere")
    foreign = replaced(OLD, (GAMMA, "  foreign_line(value, other);\n" + FIX))
    patch = make_patch(git, {"a.cpp": foreign.encode()})
    port = port_series(parsed([patch]), old, new)[0]
    assert port.verdicts[0].verdict is Verdict.CONFLICT
    assert "old tree" in port.verdicts[0].evidence


def test_trees_of_every_kind(tmp_path: Path) -> None:
    git = make_repo(tmp_path / "r", {"a": b"1\n"})
    commit(git, {"a": b"2\n"}, "second")
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "a").write_bytes(b"3\r\n")
    (plain / ".gitignore").write_bytes(b"ignored\n")
    (plain / "ignored").write_bytes(b"still part of the tree\n")
    specs = {str(git.folder): b"2\n", f"{git.folder}@base": b"1\n", str(plain): b"3\r\n"}
    for number, (spec, content) in enumerate(specs.items()):
        tree = open_tree(spec, tmp_path / f"work{number}")
        state = tree.read("a")
        assert state is not None
        assert state.data == content
    assert open_tree(str(plain), tmp_path / "again").read("ignored") is not None
    assert sorted(path.name for path in plain.iterdir()) == [".gitignore", "a", "ignored"]


@pytest.mark.parametrize("spec", ["nowhere", "r@v9", "r/a", "plain@HEAD~1"])
def test_trees_that_are_none(tmp_path: Path, spec: str) -> None:
    from build.errors import SourceError

    make_repo(tmp_path / "r", {"a": b"1\n"})
    (tmp_path / "plain").mkdir()
    with pytest.raises(SourceError):
        open_tree(str(tmp_path / spec), tmp_path / "work")


def test_git_is_untouched(tmp_path: Path) -> None:
    git, old, new = old_and_new(tmp_path, {"a.cpp": OLD.encode()}, {"k": b"k\n"})
    patch = make_patch(git, {"a.cpp": PATCHED.encode()})

    def names(repo: Git) -> set[Path]:
        return {path for path in repo.folder.rglob("*") if path.is_file()}

    before = names(git)
    port_series(parsed([patch]), old, new)
    assert names(git) == before


SCRIPT = "#!/bin/sh\n" + "".join(f"say_part_{n} with some words\n" for n in range(20))


def test_a_file_that_is_generated_now_is_followed_to_its_template(tmp_path: Path) -> None:
    """Both were in the old tree: the template is no new file."""
    template = SCRIPT.replace("say_part_3 with some", "@SAY@ with other")
    port = port_one(
        tmp_path,
        {"bin/tell.sh": SCRIPT.encode(), "bin/tell.sh.in": template.encode()},
        {"bin/tell.sh": SCRIPT.replace("say_part_9 ", "more_of_this now\nsay_part_9 ").encode()},
        {"bin/tell.sh": None},
    )
    (verdict,) = port.verdicts
    assert (verdict.verdict, verdict.new_path, verdict.line) == (Verdict.MOVED, "bin/tell.sh.in", 8)
    state = port.files["bin/tell.sh.in"]
    assert state is not None
    assert state.data.decode() == template.replace("say_part_9 ", "more_of_this now\nsay_part_9 ")


def test_a_removed_file_whose_template_stays_is_upstream(tmp_path: Path) -> None:
    files: Files = {"bin/tell.sh": SCRIPT.encode(), "bin/tell.sh.in": SCRIPT.encode()}
    port = port_one(tmp_path, files, {"bin/tell.sh": None}, {"bin/tell.sh": None})
    assert [verdict.verdict for verdict in port.verdicts] == [Verdict.UPSTREAM]


NEWS = b"Refuse archives whose members point outside of the target.\nReported by a user.\n"


def test_a_new_file_that_upstream_has_elsewhere(tmp_path: Path) -> None:
    """A news fragment, which a release gathers with others."""
    gathered = b".. section: Library\n\nAnother thing was mended here.\n\n" + NEWS + b"\nAnd a third one, too.\n"
    fragment, release = "news.d/next/1234.rst", "news.d/3.1.4.rst"
    old: Files = {"a.c": numbered(20), "news.d/3.1.3.rst": b"Things of before, which nobody changes.\n"}
    port = port_one(tmp_path, old, {fragment: NEWS}, {release: gathered})
    (verdict,) = port.verdicts
    assert verdict.verdict is Verdict.CONFLICT
    assert f"the new tree seems to have it elsewhere: 100% of the distinctive lines around it are in {release}" in (
        verdict.evidence
    )
    assert port.files == {}
    port = port_one(tmp_path / "other", old, {fragment: NEWS}, {release: gathered.replace(b"members", b"entries")})
    assert [item.verdict for item in port.verdicts] == [Verdict.CLEAN]
