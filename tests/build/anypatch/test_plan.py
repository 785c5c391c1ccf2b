"""Changes that an overlay serves or refuses, on a small tree with the release's kinds of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from build.anypatch import patchset
from build.anypatch.plan import Change, Limits, Plan, Serves, make
from build.errors import NeedsFullBuildError, PatchError, UsageError
from build.overlay.owners import listed, macros_of, read
from build.releases import Define, Release, get
from tests.build.overlay.little import write

_C10D = "torch/csrc/distributed/c10d"
_TREE = {
    "build_variables.bzl": f"""
libtorch_distributed_sources = ["{_C10D}/Store.cpp", "{_C10D}/Uv.cpp", "{_C10D}/Hooks.cpp", "{_C10D}/Gone.cpp",
    "{_C10D}/Mpi.cpp", "{_C10D}/Partly.cpp", "{_C10D}/Ops.cpp", "{_C10D}/Comment.cpp"]
libtorch_cuda_sources = ["{_C10D}/Nccl.cpp"] + ["{_C10D}/Special.cpp"]
libtorch_python_sources = libtorch_distributed_sources + ["{_C10D}/init.cpp"]
some_headers = ["{_C10D}/Store.hpp"]
""",
    "caffe2/CMakeLists.txt": f"""
target_compile_definitions(torch_cuda PRIVATE USE_CUDA)
target_compile_definitions(torch_cuda PUBLIC USE_RPC)
target_compile_definitions(torch_cpu PUBLIC USE_RPC)
set_source_files_properties({_C10D}/Special.cpp PROPERTIES COMPILE_FLAGS "-DSPECIAL=1")
set_source_files_properties({_C10D}/Nccl.cpp PROPERTIES COMPILE_FLAGS -Wno-deprecated)
set_source_files_properties({_C10D}/Store.cpp PROPERTIES COMPILE_FLAGS "-march=armv8.2-a+fp16")
set_source_files_properties({_C10D}/Store.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
set_source_files_properties({_C10D}/Hooks.cpp PROPERTIES INCLUDE_DIRECTORIES "${{MAGMA_INCLUDE_DIR}}")
""",
    "cmake/Dependencies.cmake": "add_compile_options(-DUSE_UV)\n",
    "torch/library.h": "#pragma once\n",
    "torch/headeronly/x.h": "#pragma once\n",
    f"{_C10D}/Store.hpp": "#pragma once\n",
    f"{_C10D}/Shared.hpp": "#pragma once\n",
    f"{_C10D}/Device.hpp": "#pragma once\n",
    f"{_C10D}/Bound.hpp": "#pragma once\n",
    f"{_C10D}/Lonely.hpp": "#pragma once\n",
    f"{_C10D}/Made.hpp": "#pragma once\n",
    f"{_C10D}/Listed.hpp": "#pragma once\n",
    f"{_C10D}/Binding.hpp": '#include "Made.hpp"\n',
    "tools/autograd/templates/python.cpp": f"#include <{_C10D}/Binding.hpp>\n${{methods}}\n",
    "torchgen/gen_lazy.py": f'headers = ["{_C10D}/Listed.hpp"]\n',
    f"{_C10D}/Store.cpp": '#include "Store.hpp"\n#include "Shared.hpp"\n',
    f"{_C10D}/Uv.cpp": '#include "Store.hpp"\n#ifdef USE_UV\n#endif\n#if defined(OTHER)\n#endif\n',
    f"{_C10D}/Nccl.cpp": '#include "Shared.hpp"\n',
    f"{_C10D}/Special.cpp": "",
    f"{_C10D}/Hooks.cpp": "",
    f"{_C10D}/Kernel.cu": '#include "Device.hpp"\n',
    f"{_C10D}/init.cpp": '#include "Bound.hpp"\n#include <torch/library.h>\n',
    f"{_C10D}/Mpi.cpp": "// MPI\n#include <mpi.h>\n#ifdef USE_C10D_MPI // so\nint a;\n#if 1\n#endif\n#endif\n",
    f"{_C10D}/Partly.cpp": "#ifdef USE_C10D_MPI\nint a;\n#else\nint b;\n#endif\n",
    f"{_C10D}/Ops.cpp": "namespace c10d {\nTORCH_LIBRARY(c10d, m) {\n}\n}\n",
    f"{_C10D}/Comment.cpp": "// TORCH_LIBRARY(a, m)\n#ifdef USE_ROCM\nTORCH_LIBRARY(a, m) {}\n#endif\nint a;\n",
    "aten/src/ATen/vulkan/Context.cpp": "",
    "aten/src/ATen/native/vulkan/Guard.cpp": "",
    "aten/src/ATen/native/miopen/Conv.cpp": "",
    "aten/src/ATen/native/cuda/linalg/Pool.cpp": "",
    "c10/core/A.cpp": "",
    "c10/cuda/B.cpp": "",
    "aten/src/ATen/native/cpu/K.cpp": "",
    "test/cpp/c10d/StoreTest.cpp": '#include "Store.hpp"\n',
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree")
    write(folder, _TREE)
    return folder


def served(plan: Plan) -> dict[str, Serves]:
    return {row.path.rpartition("/")[2]: row.serves for row in plan.rows}


@pytest.mark.parametrize(
    ("path", "library"),
    [
        (f"{_C10D}/Store.cpp", "libtorch_cpu.so"),
        (f"{_C10D}/Nccl.cpp", "libtorch_cuda.so"),
        (f"{_C10D}/init.cpp", "libtorch_python.so"),
        ("c10/core/A.cpp", "libc10.so"),
        ("c10/cuda/B.cpp", "libc10_cuda.so"),
        ("torch/csrc/unknown.cpp", ""),
    ],
)
def test_the_build_files_name_the_library(tree: Path, path: str, library: str) -> None:
    assert read(tree).of(path) == library


def test_a_list_for_phones_counts_where_the_wheel_is_made_of_it() -> None:
    """A patch of decompose_ops.cpp was taken for one of nothing in the wheel, and ignored beside other changes."""
    text = "a_mobile = ['a.cpp']\nb_mobile = a_mobile + ['b.cpp']\ncore_full = b_mobile\nother_mobile = ['c.cpp']\n"
    assert listed(text) == {"a.cpp": "libtorch_cpu.so", "b.cpp": "libtorch_cpu.so"}


def test_what_build_files_say_of_flags_is_read(tree: Path) -> None:
    owners = read(tree)
    assert owners.cuda_only == {"USE_CUDA"}
    assert owners.flags_of(f"{_C10D}/Special.cpp") == "-DSPECIAL=1"
    assert not owners.flags_of(f"{_C10D}/Special.cpp", ["SPECIAL=0"])
    assert not owners.flags_of(f"{_C10D}/Nccl.cpp")
    assert macros_of(tree / f"{_C10D}/Uv.cpp") & owners.conditional == {"USE_UV"}


@pytest.mark.parametrize(
    ("path", "serves", "why"),
    [
        (f"{_C10D}/Store.cpp", Serves.OVERLAY, "libtorch_cpu"),
        ("c10/core/A.cpp", Serves.OVERLAY, "libc10"),
        (f"{_C10D}/Kernel.cu", Serves.FULL, "device code"),
        (f"{_C10D}/init.cpp", Serves.OVERLAY, "one Python version"),
        (f"{_C10D}/Special.cpp", Serves.FULL, "SPECIAL"),
        (f"{_C10D}/Hooks.cpp", Serves.FULL, 'INCLUDE_DIRECTORIES "${MAGMA_INCLUDE_DIR})'),
        (f"{_C10D}/Gone.cpp", Serves.FULL, "removes it"),
        ("aten/src/ATen/native/cpu/K.cpp", Serves.FULL, "instruction set"),
        (f"{_C10D}/Mpi.cpp", Serves.NOTHING, "all of it is under USE_C10D_MPI"),
        (f"{_C10D}/Partly.cpp", Serves.OVERLAY, "libtorch_cpu"),
        (f"{_C10D}/Ops.cpp", Serves.FULL, "register twice: TORCH_LIBRARY(c10d, m"),
        (f"{_C10D}/Comment.cpp", Serves.OVERLAY, "libtorch_cpu"),
        ("aten/src/ATen/vulkan/Context.cpp", Serves.OVERLAY, "libtorch_cpu"),
        ("aten/src/ATen/native/vulkan/Guard.cpp", Serves.NOTHING, "another device"),
        ("aten/src/ATen/native/miopen/Conv.cpp", Serves.OVERLAY, "a unit of lib"),
        ("aten/src/ATen/native/cuda/linalg/Pool.cpp", Serves.FULL, "libtorch_cuda_linalg.so"),
        ("aten/src/ATen/native/native_functions.yaml", Serves.FULL, "generated"),
        ("caffe2/CMakeLists.txt", Serves.FULL, "build file"),
        ("third_party/gloo", Serves.FULL, "submodule"),
        ("torch/lib/libshm/core.cpp", Serves.FULL, "of its own"),
        ("torch/distributed/rendezvous.py", Serves.PYTHON, "replaced"),
        ("test/distributed/test_store.py", Serves.NOTHING, "not in the wheel"),
        ("test/cpp/c10d/StoreTest.cpp", Serves.NOTHING, "not in the wheel"),
        ("docs/source/distributed.rst", Serves.NOTHING, "not in the wheel"),
        (f"{_C10D}/Shared.hpp", Serves.HEADER, "by 2 units"),
        (f"{_C10D}/Device.hpp", Serves.FULL, "1 device unit,"),
        (f"{_C10D}/Bound.hpp", Serves.HEADER, "by 1 unit"),
        (f"{_C10D}/Lonely.hpp", Serves.ALONE, "no unit"),
        (f"{_C10D}/Made.hpp", Serves.FULL, "generated from tools/autograd/templates/python.cpp"),
        (f"{_C10D}/Listed.hpp", Serves.FULL, "generated from torchgen/gen_lazy.py"),
        ("torch/_inductor/codegen/cpp_prefix.h", Serves.PYTHON, "replaced"),
        ("torch/library.h", Serves.HEADER, "by 1 unit"),
        ("torch/headeronly/x.h", Serves.ALONE, "no unit"),
    ],
)
def test_each_kind_of_change(tree: Path, path: str, serves: Serves, why: str) -> None:
    (row,) = make(tree, Change(frozenset([path]))).rows
    assert (row.serves, why in row.why) == (serves, True), row


def test_a_header_brings_its_units(tree: Path) -> None:
    plan = make(tree, Change(frozenset([f"{_C10D}/Shared.hpp"])))
    plan.require()
    assert sorted(plan.units) == [f"{_C10D}/Nccl.cpp", f"{_C10D}/Store.cpp"]
    with pytest.raises(NeedsFullBuildError, match="--most-units 2 allows it"):
        make(tree, Change(frozenset([f"{_C10D}/Shared.hpp"])), Limits(most_units=1)).require()


def test_a_removed_unit_is_refused(tree: Path) -> None:
    plan = make(tree, Change(one := frozenset([f"{_C10D}/Store.cpp"]), removed=one))
    with pytest.raises(NeedsFullBuildError, match="the patch removes it"):
        plan.require()


def test_a_new_unit_is_served_where_the_lists_name_it(tree: Path) -> None:
    new, lists = f"{_C10D}/New.cpp", "build_variables.bzl"
    before = (tree / lists).read_text()
    after = before.replace(f'"{_C10D}/Uv.cpp"', f'"{_C10D}/Uv.cpp", "{new}"')
    named = make(tree, Change(frozenset([new, lists]), frozenset([new]), lists=(before, after)))
    assert served(named) == {"New.cpp": Serves.OVERLAY, lists: Serves.NOTHING}
    assert named.owners.of(new) == "libtorch_cpu.so"
    unnamed = make(tree, Change(frozenset([new]), frozenset([new])))
    assert served(unnamed) == {"New.cpp": Serves.FULL}
    other = after.replace("libtorch_cuda_sources = [", 'libtorch_cuda_sources = ["x.cpp", ')
    assert (
        served(make(tree, Change(frozenset([new, lists]), frozenset([new]), lists=(before, other))))[lists]
        is Serves.FULL
    )
    gone = before.replace(f'"{_C10D}/Uv.cpp", ', "")
    assert served(make(tree, Change(frozenset([lists]), lists=(before, gone))))[lists] is Serves.FULL
    assert served(make(tree, Change(frozenset(["c10/core/New.cpp"]), frozenset(["c10/core/New.cpp"])))) == {
        "New.cpp": Serves.OVERLAY
    }


def test_python_files_need_no_unit(tree: Path) -> None:
    plan = make(tree, Change(frozenset(["torch/distributed/rendezvous.py"])))
    plan.require()
    assert (plan.units, plan.python) == ({}, ("torch/distributed/rendezvous.py",))


def test_tests_only_are_nothing_to_build(tree: Path) -> None:
    with pytest.raises(PatchError, match="nothing that is in the wheel"):
        make(tree, Change(frozenset(["test/distributed/test_store.py"]))).require()


def test_what_the_releases_entry_says_of_a_unit_is_decided(tree: Path) -> None:
    """The series' own units would be refused to a user otherwise."""
    special, other = f"{_C10D}/Special.cpp", f"{_C10D}/Store.cpp"
    change = Change(frozenset([special]))
    for units, serves in (((special,), Serves.OVERLAY), ((), Serves.OVERLAY), ((other,), Serves.FULL)):
        known = (Define(macro="SPECIAL=1", reason="the test says so", units=units),)
        assert served(make(tree, change, Limits(known=known))) == {"Special.cpp": serves}


def test_one_file_is_enough_to_refuse(tree: Path) -> None:
    plan = make(tree, Change(frozenset([f"{_C10D}/Store.cpp", f"{_C10D}/Kernel.cu"])))
    assert served(plan) == {"Store.cpp": Serves.OVERLAY, "Kernel.cu": Serves.FULL}
    with pytest.raises(NeedsFullBuildError, match=r"Kernel\.cu: device code"):
        plan.require()


def release() -> Release:
    return get("2.6.0")


@pytest.mark.parametrize(("label", "version"), [("fix1", "2.6.0+cu124.fix1"), ("My-Fix_2", "2.6.0+cu124.my.fix.2")])
def test_the_label_ends_the_version(label: str, version: str) -> None:
    assert patchset.labelled(release(), label).patched_version == version


@pytest.mark.parametrize("label", ["", "fix 1", "ümlaut", "-a", "a..b", "mw3"])
def test_a_label_that_is_no_local_version_is_refused(label: str) -> None:
    with pytest.raises(UsageError):
        patchset.labelled(release(), label)


def test_patches_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        patchset.load(tmp_path / "none.patch")
    with pytest.raises(UsageError, match="has no"):
        patchset.load(tmp_path)
    (tmp_path / "a.patch").write_text("hello\n")
    with pytest.raises(PatchError, match="not a patch"):
        patchset.load(tmp_path)
    (tmp_path / "a.patch").write_text("")
    with pytest.raises(PatchError, match="changes no file"):
        patchset.load(tmp_path)
    with pytest.raises(UsageError, match="one of"):
        patchset.chosen(release(), None, "")
