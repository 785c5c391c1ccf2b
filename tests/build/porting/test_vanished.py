"""Names that upstream took out of the whole tree, or has no use for any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from build.porting import trees
from build.porting.engine import PatchPort, PatchState
from build.porting.trees import Layer
from build.porting.vanished import MANY, Names, among
from build.series.verdicts import Verdict

from .code import replaced, source
from .test_companions import line
from .trees import Files, old_and_new, port_one

OLD = source()
HEADER = b"int is_tainted_by(int value, const char *why);\nint other_value(int value);\n"
GONE = HEADER.replace(b"int is_tainted_by(int value, const char *why);\n", b"")


def moved(text: str) -> bytes:
    """The same further down: a hunk of it fits, and is not clean."""
    return b"int upstream_has_more;\n" + text.encode()


def with_check(call: str) -> str:
    return replaced(OLD, (line("beta", 5), line("beta", 5) + f"  if ({call}) return 1;\n"))


def port_check(folder: Path, before: Files, after: Files, call: str = 'is_tainted_by(value, "beta")') -> PatchPort:
    old, new = {"a.c": OLD.encode(), **before}, {"a.c": moved(OLD), **after}
    return port_one(folder, old, {"a.c": with_check(call).encode()}, new)


def test_a_function_that_the_new_tree_has_nowhere_is_not_called(tmp_path: Path) -> None:
    found = port_check(tmp_path, {"api.h": HEADER}, {"api.h": GONE})
    assert found.state is PatchState.NEEDS_HUMAN
    assert "uses is_tainted_by, which the old tree declares" in found.verdicts[0].evidence
    assert found.marked


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"api.h": HEADER}, {"api.h": HEADER}),
        ({"api.h": HEADER}, {"api.h": None, "new_api.h": HEADER}),
        ({"b.c": b'int b(void) { return is_tainted_by(1, "b"); }\n'}, {"b.c": None}),
        ({"api.txt": HEADER}, {"api.txt": GONE}),
        ({}, {}),
        ({"api.h": HEADER}, {"api.h": HEADER.replace(b"is_tainted_by", b"is_tainted_by_all") + HEADER}),
    ],
    ids=[
        "declared",
        "declared elsewhere",
        "only used",
        "not code",
        "unknown to both",
        "beside a longer one",
    ],
)
def test_other_names_are_used(tmp_path: Path, before: Files, after: Files) -> None:
    assert port_check(tmp_path, before, after).state is PatchState.PORTED


def test_what_the_patch_declares_itself_is_its_own(tmp_path: Path) -> None:
    old: Files = {"a.c": OLD.encode(), "api.h": HEADER}
    new: Files = {"a.c": moved(OLD), "api.h": GONE}
    own = HEADER.replace(b"is_tainted_by(int value", b"is_tainted_by(long value")
    change: Files = {"a.c": with_check('is_tainted_by(value, "beta")').encode(), "more.h": own}
    assert port_one(tmp_path, old, change, new).verdicts[0].verdict is Verdict.OFFSET


MACRO = "#ifndef LONGEST_HOST\n#define LONGEST_HOST 255\n#endif\n"


def test_a_definition_that_nothing_needs_any_more_goes_to_a_human(tmp_path: Path) -> None:
    used, unused = b"char name[LONGEST_HOST];\n", b"char name[256];\n"
    patched = replaced(OLD, ("#include <second.h>\n", "#include <second.h>\n" + MACRO)).encode()
    gone = port_one(tmp_path / "gone", {"a.c": OLD.encode(), "b.c": used}, {"a.c": patched}, {"b.c": unused})
    assert "it defines LONGEST_HOST, which other files of the old tree use" in gone.verdicts[0].evidence
    kept = port_one(tmp_path / "kept", {"a.c": OLD.encode(), "b.c": used}, {"a.c": patched}, {"c.c": unused})
    assert kept.state is PatchState.PORTED


def test_a_partial_clone_is_not_searched(tmp_path: Path) -> None:
    """Its files would have to be fetched, and what is missing may have the name."""
    git, before, after = old_and_new(tmp_path, {"api.h": HEADER}, {"api.h": GONE})
    assert before.whole
    git.out("config", "remote.origin.promisor", "true")
    assert not after.whole


@pytest.mark.parametrize("more", [0, MANY])
def test_names_are_found_as_whole_words(more: int) -> None:
    """However many they are: many are found in another way than few."""
    names = [b"alpha", b"beta_2", b"gamma", *(f"name_{number}".encode() for number in range(more))]
    data = b"alpha(beta_2x, x.gamma\xc3\xa9)\n#define name_1 beta\n"
    assert among(names, data) == {b"alpha", b"gamma", b"name_1"}.intersection(names)


def test_a_name_is_searched_once(tmp_path: Path) -> None:
    _, before, _ = old_and_new(tmp_path, {"a.h": b"alpha\n", "b.h": b"alpha beta\n", "c.h": b"alpha\n"}, {})
    layer = Layer(before)
    names = Names(layer, layer.paths({".h"}), 2)
    assert {name: set(found) for name, found in names.files({b"alpha", b"beta"}).items()} == {
        b"alpha": {"a.h", "b.h"},
        b"beta": {"b.h"},
    }
    layer.put("c.h", trees.FileState("100644", b"alpha beta gamma\n"))
    assert {name: set(found) for name, found in names.files({b"beta", b"gamma"}).items()} == {
        b"beta": {"b.h"},
        b"gamma": {"c.h"},
    }


@pytest.mark.parametrize("more", [0, MANY])
def test_it_does_not_matter_where_a_name_is_likely(tmp_path: Path, more: int) -> None:
    """Many names are searched first where they are likely to be; each is found wherever it is."""
    every = b"".join(b"name_%d " % number for number in range(more))
    files: Files = {"a.h": b"alpha beta\n", "b.h": b"beta gamma\n", "c.h": b"alpha gamma beta\n", "d.h": every}
    _, before, _ = old_and_new(tmp_path, files, {"a.h": None})
    layer = Layer(before)
    wanted = {b"alpha", b"beta", b"gamma", b"delta", *every.split()}
    likely = {b"alpha": ("c.h", "gone.h"), b"beta": ("c.h", "b.h"), b"gamma": ("d.h",), b"delta": ("a.h",)}
    found = Names(layer, layer.paths({".h"}), 2).files(
        wanted, {name: dict.fromkeys(paths, b"") for name, paths in likely.items()}
    )
    beta = {"b.h", "c.h"} if more else {"a.h", "b.h"}
    assert {name: set(paths) for name, paths in found.items()} == {
        b"alpha": {"a.h", "c.h"},
        b"beta": beta,
        b"gamma": {"b.h", "c.h"},
        **{name: {"d.h"} for name in every.split()},
    }


def test_a_layer_is_searched_as_it_is(tmp_path: Path) -> None:
    _, before, _ = old_and_new(tmp_path, {"api.h": HEADER, "b.h": HEADER, "c.txt": HEADER}, {"d.c": b""})
    layer = Layer(before)
    layer.put("api.h", None)
    layer.put("new.h", trees.FileState("100644", b"void is_tainted_by(void);\n"))
    assert dict(layer.read_all(layer.paths({".h", ".c"}))) == {"b.h": HEADER, "new.h": b"void is_tainted_by(void);\n"}
