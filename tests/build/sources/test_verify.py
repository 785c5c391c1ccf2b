from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from build.errors import DigestMismatchError
from build.sources import Proof, SourceTree, acquire, check_belongs, check_headers
from build.sources.tree import tree_path

from .test_local import blob
from .trees import FILES, release, write_tree

WHEEL = {
    "ATen/Tensor.h": FILES["aten/src/ATen/Tensor.h"],
    "ATen/ops/add.h": b"// generated\n",
    "c10/macros/Export.h": FILES["c10/macros/Export.h"],
    "torch/csrc/cuda/nccl.h": FILES["torch/csrc/cuda/nccl.h"],
    "pybind11/pybind11.h": b"// third party\n",
}
PINNED = {"torch/csrc/cuda/nccl.cpp": blob(FILES["torch/csrc/cuda/nccl.cpp"])}


@pytest.fixture
def tree(tmp_path: Path) -> SourceTree:
    return acquire(release(), write_tree(tmp_path / "plain"))


@pytest.fixture
def pinned(tmp_path: Path) -> SourceTree:
    found = acquire(release(blobs=PINNED), write_tree(tmp_path / "plain"))
    assert found.proof is Proof.BLOBS
    return found


def include(tmp_path: Path, **changes: bytes) -> Path:
    """The wheel's include folder; `c10=b"…"` changes its Export.h."""
    other = {"c10/macros/Export.h": changes["c10"]} if "c10" in changes else {}
    return write_tree(tmp_path / "include", WHEEL | other)


def test_equal_headers_and_those_the_tree_has_not(tmp_path: Path, tree: SourceTree) -> None:
    found = check_headers(tree, include(tmp_path))
    assert found == (3, [])


def test_difference_is_refused_with_both_digests(tmp_path: Path, tree: SourceTree) -> None:
    with pytest.raises(DigestMismatchError) as caught:
        check_headers(tree, include(tmp_path, c10=b"#define C10_API extern\n"))
    for data in (b"#define C10_API extern\n", FILES["c10/macros/Export.h"]):
        assert hashlib.sha256(data).hexdigest() in str(caught.value)


def test_difference_elsewhere_is_recorded(tmp_path: Path, tree: SourceTree) -> None:
    found = check_headers(tree, include(tmp_path, c10=b"other\n"), frozenset({"ATen/Tensor.h"}))
    assert found[1] == ["c10/macros/Export.h"]


def test_one_byte_of_line_ending_is_a_difference(tmp_path: Path, tree: SourceTree) -> None:
    with pytest.raises(DigestMismatchError):
        check_headers(tree, include(tmp_path, c10=FILES["c10/macros/Export.h"].replace(b"\n", b"\r\n")))


def test_folder_without_a_shared_header_proves_nothing(tmp_path: Path, tree: SourceTree) -> None:
    with pytest.raises(DigestMismatchError, match="share no header"):
        check_headers(tree, write_tree(tmp_path / "include", {"other/x.h": b""}))


def test_header_taken_from_the_wheel_may_differ_in_a_pinned_tree(tmp_path: Path, pinned: SourceTree) -> None:
    found = check_belongs(pinned, include(tmp_path, c10=b"other\n"), frozenset(PINNED))
    assert len(found[1]) == 1


def test_header_taken_from_a_pinned_tree_must_be_the_wheels(tmp_path: Path, pinned: SourceTree) -> None:
    read = frozenset([*PINNED, "c10/macros/Export.h"])
    assert check_belongs(pinned, include(tmp_path), read)[0] == 3
    with pytest.raises(DigestMismatchError, match=r"c10/macros/Export\.h"):
        check_belongs(pinned, include(tmp_path, c10=b"other\n"), read)


def test_file_that_nothing_pins_must_not_be_compiled(tmp_path: Path, pinned: SourceTree) -> None:
    with pytest.raises(DigestMismatchError, match=r"but are not pinned:\ntorch/tool\.sh"):
        check_belongs(pinned, include(tmp_path), frozenset([*PINNED, "torch/tool.sh"]))


def test_tree_of_no_proof_needs_all_headers_equal(tmp_path: Path, tree: SourceTree) -> None:
    assert tree.proof is Proof.NONE
    with pytest.raises(DigestMismatchError):
        check_belongs(tree, include(tmp_path, c10=b"other\n"), frozenset())


@pytest.mark.parametrize(
    ("header", "path"),
    [
        ("ATen/core/Tensor.h", "aten/src/ATen/core/Tensor.h"),
        ("THC/THC.h", "aten/src/THC/THC.h"),
        ("c10/util/Half.h", "c10/util/Half.h"),
        ("torch/csrc/api/include/torch/all.h", "torch/csrc/api/include/torch/all.h"),
    ],
)
def test_where_headers_lie_in_the_tree(header: str, path: str) -> None:
    assert tree_path(header) == path
