"""Units outside an overlay that see a changed header come along, or the header is declared safe."""

from __future__ import annotations

from pathlib import Path

import pytest

from build.anypatch.plan import Change, Limits, Serves, make
from build.errors import SourceError
from build.overlay import layout
from build.overlay.build import build_overlay
from build.overlay.owners import LISTS, read
from tests.build.overlay import little as lt
from tests.build.overlay.little import HIDDEN_CPP, NCCL_CPP, NCCL_H, USER_CPP, Little

HIDDEN_H = "torch/csrc/cuda/Secret.h"
#: An enumerator more, which changes no value and no layout.
EDITS = lt.edited(NCCL_H, "NumResults = 1", "NumResults = 1, Later = 2") | lt.edited(NCCL_CPP, "return 1", "return 2")


def including(tree: Path, header: str) -> frozenset[str]:
    return layout.units_including(layout.includers(tree), header)


def test_a_header_is_seen_through_another_one(little: Little) -> None:
    assert including(little.tree, NCCL_H) == {NCCL_CPP, USER_CPP}


def test_device_code_counts_and_tests_do_not(little: Little, tmp_path: Path) -> None:
    include = f"#include <{HIDDEN_H}>\n"
    files = {"torch/csrc/cuda/kernel.cu": include, "torch/csrc/test/uses.cpp": include}
    tree = lt.inputs(little, tmp_path / "tree", files).tree
    assert including(tree, HIDDEN_H) == {NCCL_CPP, HIDDEN_CPP, "torch/csrc/cuda/kernel.cu"}


@pytest.mark.parametrize(
    ("folder", "name", "meant"),
    [
        ("torch/csrc/cuda", "Secret.h", True),
        ("torch/csrc", "cuda/Secret.h", True),
        ("torch/csrc/jit/old", "../../cuda/./Secret.h", True),
        ("torch/csrc/jit", "jit/Secret.h", False),
        ("torch/csrc/jit", "torch/csrc/jit/Secret.h", False),
    ],
)
def test_a_header_of_the_same_name_elsewhere(
    folder: str, name: str, meant: bool, little: Little, tmp_path: Path
) -> None:
    unit = f"{folder}/another.cpp"
    tree = lt.inputs(little, tmp_path / "tree", {unit: f'#include "{name}"\n'}).tree
    assert (unit in including(tree, HIDDEN_H)) is meant


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ('fm.write("Secret.h", body)', False),
        ("# Secret.h is written elsewhere", False),
        ('f"generated from {folder}/Secret.h"', False),
        ('f"#include <{folder}/Secret.h>"', True),
        ('headers = ["torch/csrc/cuda/Secret.h"]', True),
        ('headers = ["cuda/Secret.h"]', True),
        ("return '#include \"Secret.h\"'", True),
        ('return "#include \\"Secret.h\\""', True),
        ('return "#include <Secret.h>"', True),
    ],
)
def test_a_header_that_a_generator_names(text: str, meant: bool, little: Little, tmp_path: Path) -> None:
    generator = "tools/autograd/gen_little.py"
    tree = lt.inputs(little, tmp_path / "tree", {generator: text + "\n"}).tree
    assert (generator in including(tree, HIDDEN_H)) is meant


def test_a_safe_header_brings_no_unit_along(little: Little) -> None:
    safe = Limits(safe={NCCL_H: "an enumerator more"})
    (row,) = make(little.tree, Change(frozenset([NCCL_H])), safe).rows
    assert (row.serves, row.why) == (Serves.NOTHING, "declared safe: an enumerator more")


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(
    ("safe", "units", "said"),
    [
        ({}, {NCCL_CPP, USER_CPP, HIDDEN_CPP}, "no unit outside the overlay includes it"),
        ({NCCL_H: "an enumerator more"}, {NCCL_CPP, HIDDEN_CPP}, "declared safe: an enumerator more"),
    ],
)
def test_the_units_of_a_changed_header(
    safe: dict[str, str], units: set[str], said: str, little: Little, tmp_path: Path
) -> None:
    made = build_overlay(lt.inputs(little, tmp_path / "tree", EDITS, safe=safe), tmp_path / "out")
    assert {item.unit for item in made.objects} == units
    assert f"{NCCL_H}: {said}" in [check.detail for check in made.checks]


def test_a_tree_without_the_lists_of_sources(little: Little, tmp_path: Path) -> None:
    """Every unit would be in no library, and a patch of it change nothing."""
    given = lt.inputs(little, tmp_path / "tree", {})
    (given.tree / LISTS).unlink()
    with pytest.raises(SourceError, match=LISTS):
        read(given.tree)
