"""A series that changes what units outside the overlay see is refused, with the header and the units."""

from __future__ import annotations

from pathlib import Path

import pytest

from build.errors import NeedsFullBuildError
from build.overlay import layout
from build.overlay.build import build_overlay
from tests.build.overlay import little as lt
from tests.build.overlay.little import HIDDEN_CPP, NCCL_CPP, NCCL_H, USER_CPP, Little

HIDDEN_H = "torch/csrc/cuda/Secret.h"


def test_a_header_that_an_outside_unit_includes(little: Little) -> None:
    """User.cpp includes it through another header."""
    with pytest.raises(NeedsFullBuildError) as caught:
        layout.check_headers(little.tree, [NCCL_H, NCCL_CPP], [NCCL_CPP], {})
    assert NCCL_H in caught.value.what
    assert USER_CPP in caught.value.what
    assert NCCL_CPP not in caught.value.what
    assert "header_changes" in caught.value.remedy


def test_declared_safe(little: Little) -> None:
    found = layout.check_headers(little.tree, [NCCL_H], [NCCL_CPP], {NCCL_H: "an enumerator more"})
    assert found == f"{NCCL_H}: declared safe: an enumerator more"


def test_a_header_of_the_overlay_alone(little: Little) -> None:
    found = layout.check_headers(little.tree, [HIDDEN_H], [NCCL_CPP, HIDDEN_CPP], {})
    assert found == f"{HIDDEN_H}: no unit outside the overlay includes it"
    with pytest.raises(NeedsFullBuildError, match=HIDDEN_CPP):
        layout.check_headers(little.tree, [HIDDEN_H], [NCCL_CPP], {})


def test_device_code_counts_as_an_outside_unit_and_tests_do_not(little: Little, tmp_path: Path) -> None:
    include = f"#include <{HIDDEN_H}>\n"
    files = {"torch/csrc/cuda/kernel.cu": include, "torch/csrc/test/uses.cpp": include}
    tree = lt.inputs(little, tmp_path / "tree", files).tree
    with pytest.raises(NeedsFullBuildError) as caught:
        layout.check_headers(tree, [HIDDEN_H], [NCCL_CPP, HIDDEN_CPP], {})
    assert "kernel.cu" in caught.value.what
    assert "uses.cpp" not in caught.value.what


@pytest.mark.parametrize("path", ["torch/csrc/cuda/k.cu", "torch/nn/x.py", "CMakeLists.txt", "caffe2/a.cpp"])
def test_what_no_overlay_carries(path: str, little: Little, tmp_path: Path) -> None:
    tree = lt.inputs(little, tmp_path / "tree", {path: "\n"}).tree
    with pytest.raises(NeedsFullBuildError, match=path):
        layout.check_paths(tree, [NCCL_CPP, path])


def test_a_removed_unit_is_refused(little: Little) -> None:
    with pytest.raises(NeedsFullBuildError, match=r"Gone\.cpp \(removed\)"):
        layout.check_paths(little.tree, [NCCL_CPP, "torch/csrc/Gone.cpp"])
    layout.check_paths(little.tree, [NCCL_CPP, NCCL_H])


@pytest.mark.usefixtures("own_cache")
def test_the_build_refuses_and_writes_nothing(little: Little, tmp_path: Path) -> None:
    edits = lt.edited(NCCL_H, "NumResults = 1", "NumResults = 2") | lt.edited(NCCL_CPP, "return 1", "return 2")
    with pytest.raises(NeedsFullBuildError, match="User"):
        build_overlay(lt.inputs(little, tmp_path / "tree", edits), tmp_path / "out")
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []
