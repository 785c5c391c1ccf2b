"""The `switchml` series: its build variables, and the patch that is written with their values.

The sources of its release need not be there: what the patches change is rebuilt from the lines that they quote.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from build import paths
from build.cli import main
from build.errors import UsageError
from build.git import Git, init
from build.process import run
from build.series import manifest as manifests
from build.series.manifest import Manifest
from build.series.model import ChangeKind, FileChange
from build.series.parameters import resolve
from build.series.patchfile import parse

RELEASE = "1.7.1"
#: What Make, sed, CMake and shells take for syntax.
AWKWARD = "a b & c's $HOME/@DPDK@ \\1 (x86)"
CMAKE_FILE = "torch/lib/c10d/switchml.cmake"


@pytest.fixture
def manifest() -> Manifest:
    return manifests.load(paths.PATCHES / "switchml")


@pytest.fixture
def devroot(tmp_path: Path) -> Path:
    """A `dev_root` in which the client library, gRPC and DPDK look installed."""
    root = tmp_path / AWKWARD
    for folder in ("build/include/switchml", "build/lib", "third_party/grpc/build/lib/pkgconfig"):
        (root / folder).mkdir(parents=True)
    for folder in ("include", "lib"):
        (root / "third_party/dpdk/build" / folder).mkdir(parents=True)
    (root / "build/include/switchml/context.h").touch()
    return root


def old_file(change: FileChange) -> bytes:
    """A file in which every hunk applies at the line that it names."""
    lines: list[bytes] = []
    for hunk in change.hunks:
        lines += [b"\n"] * (hunk.first - len(lines)) + hunk.old
    return b"".join(lines)


def patched_tree(patch: Path, folder: Path) -> Git:
    """The files that the patch changes, with the patch applied by `git apply`."""
    folder.mkdir()
    git = init(folder)
    for change in parse(patch.read_bytes(), patch.name).changes:
        if change.old_path is not None:
            (folder / change.old_path).parent.mkdir(parents=True, exist_ok=True)
            (folder / change.old_path).write_bytes(old_file(change))
    git.out("apply", "--whitespace=error-all", str(patch))
    return git


def settings(text: bytes) -> dict[str, str]:
    """The values that the CMake file sets."""
    found = re.findall(r"^set\(SWITCHML_(\w+) (?:\[==\[(.*)\]==\]|(\d))\)$", os.fsdecode(text), re.MULTILINE)
    return {name: path or number for name, path, number in found}


def test_every_combination_of_variables_gives_a_patch_that_git_applies(devroot: Path, tmp_path: Path) -> None:
    allowed = [[], ["DPDK=1"], ["DPDK=1", "MLX5=1"], ["DPDK=1", "MLX4=1"], ["RDMA=1"]]
    for number, given in enumerate([*allowed, *(["DEBUG=1", *others] for others in allowed)]):
        assert main(["switchml-patch", *given, f"DEVROOT={devroot}"]) == 0
        git = patched_tree(devroot / "build/switchml_pytorch.patch", tmp_path / str(number))
        found = settings((git.folder / CMAKE_FILE).read_bytes())
        assert found["HOME"] == f"{devroot}/build"
        assert found["DPDK_HOME"] == (f"{devroot}/third_party/dpdk/build" if "DPDK=1" in given else "")
        grpc = {"DPDK=1", "RDMA=1"} & set(given)
        assert found["GRPC_HOME"] == (f"{devroot}/third_party/grpc/build" if grpc else "")
        assert [f"{name}=1" for name in ("DEBUG", "DPDK", "MLX5", "MLX4", "RDMA") if found[name] == "1"] == given


def test_blob_ids_of_new_files_are_those_of_their_content(devroot: Path, tmp_path: Path) -> None:
    assert main(["switchml-patch", "DPDK=1", "MLX5=1", f"DEVROOT={devroot}"]) == 0
    patch = devroot / "build/switchml_pytorch.patch"
    git = patched_tree(patch, tmp_path / "tree")
    added = [change for change in parse(patch.read_bytes(), patch.name).changes if change.old_path is None]
    assert len(added) == 3
    for change in added:
        assert git.line("hash-object", change.path) == change.new_blob


def test_the_same_variables_give_the_same_bytes(devroot: Path) -> None:
    patch = devroot / "build/switchml_pytorch.patch"
    assert main(["switchml-patch", "RDMA=1", f"DEVROOT={devroot}"]) == 0
    first = patch.read_bytes()
    relative = ["switchml-patch", "RDMA=1", "MLX4=1", "--folder", str(devroot)]  # MLX4 does not matter with RDMA
    assert main(relative) == 0
    assert patch.read_bytes() == first


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["DPDK=1", "RDMA=1"], "DPDK and RDMA exclude each other"),
        (["DPDK=1", "MLX5=1", "MLX4=1"], "MLX5 and MLX4 exclude each other"),
        (["DPDK=yes"], "DPDK=yes is neither 0 nor 1"),
        (["CUDA=1"], "CUDA=1"),
        (["DPDK"], "'DPDK' is not NAME=VALUE"),
        (["DPDK=1", "DPDK=0"], "DPDK is given twice"),
        (["SWITCHML_HOME=nowhere"], "SWITCHML_HOME: the folder"),
        (["SWITCHML_HOME=third_party"], "SWITCHML_HOME: .*third_party has no include/switchml/context.h"),
        (["RDMA=1", "GRPC_HOME=nowhere"], "GRPC_HOME: the folder"),
        (["DPDK=1", "DPDK_HOME=nowhere"], "DPDK_HOME: the folder"),
        (["SWITCHML_HOME=a;b"], "SWITCHML_HOME: the path"),
        (["BUILDDIR=a\nb"], "BUILDDIR: the path"),
    ],
)
def test_what_cannot_be_is_refused_by_the_name_of_its_variable(
    manifest: Manifest, devroot: Path, given: list[str], named: str
) -> None:
    with pytest.raises(UsageError, match=named):
        resolve(manifest.parameter, given, devroot)


def test_a_refused_combination_writes_nothing(devroot: Path) -> None:
    assert main(["switchml-patch", "DPDK=1", "RDMA=1", f"DEVROOT={devroot}"]) == UsageError.exit_code
    assert not (devroot / "build/switchml_pytorch.patch").exists()


def test_a_path_that_does_not_matter_need_not_exist(manifest: Manifest, devroot: Path) -> None:
    values = resolve(manifest.parameter, ["GRPC_HOME=nowhere", "DPDK_HOME=nowhere", "MLX5=1"], devroot)
    assert (values["GRPC_HOME"], values["DPDK_HOME"], values["MLX5"]) == ("", "", "0")


def test_the_patches_have_every_variable_and_no_other_in_files_that_they_add(manifest: Manifest) -> None:
    places = {
        (name, change.kind)
        for patch in manifests.patches_of(RELEASE, ["switchml"])
        for change in patch.changes
        for hunk in change.hunks
        for name in re.findall(rb"@([A-Z][A-Z0-9_]*)@", b"".join(hunk.added))
    }
    of_paths = {"DEVROOT", "BUILDDIR"}  # the default of others, and the output
    names = {item.name for item in manifest.parameter} - of_paths
    assert places == {(name.encode(), ChangeKind.ADDED) for name in names}


#: For each combination: what must be on the link line, in this order, after the client library.
LINKED = {
    "": [],
    "DEBUG=1": [],
    "DPDK=1": ["-Wl,--whole-archive", "libdpdk.a", "-Wl,--no-whole-archive", "libswitchml-client.a", "-lnuma"],
    "DPDK=1 MLX5=1": ["libdpdk.a", "-lnuma", "-libverbs", "-lmlx5", "-lmnl", "-lgrpc++"],
    "DPDK=1 MLX4=1": ["libdpdk.a", "-lnuma", "-libverbs", "-lmlx4", "-lmnl", "-lgrpc++"],
    "RDMA=1": ["libswitchml-client.a", "-libverbs", "-lhugetlbfs", "-lprotobuf", "-lgrpc++"],
}
PROJECT = """cmake_minimum_required(VERSION 3.13)
project(try CXX)
set(USE_C10D_GLOO ON)
add_library(c10d STATIC try.cpp)
include({file})
add_executable(try main.cpp)
target_link_libraries(try c10d)
"""


@pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("pkg-config")), reason="needs cmake and pkg-config")
@pytest.mark.parametrize("given", LINKED)
def test_cmake_links_what_the_variables_ask_for(given: str, tmp_path: Path) -> None:
    root = tmp_path / "a b & c"
    for folder in ("build/include/switchml", "build/lib", "dpdk/include", "dpdk/lib", "grpc/lib/pkgconfig"):
        (root / folder).mkdir(parents=True)
    for file in ("build/include/switchml/context.h", "build/lib/libswitchml-client.a", "dpdk/lib/libdpdk.a"):
        (root / file).touch()
    for name in ("protobuf", "grpc++"):
        text = f"Name: {name}\nDescription: x\nVersion: 1\nLibs: -L/opt/{name} -l{name}\nCflags: -I/opt/{name}\n"
        (root / f"grpc/lib/pkgconfig/{name}.pc").write_text(text)
    homes = [f"GRPC_HOME={root}/grpc", f"DPDK_HOME={root}/dpdk"]
    assert main(["switchml-patch", *given.split(), f"DEVROOT={root}", *homes]) == 0
    git = patched_tree(root / "build/switchml_pytorch.patch", tmp_path / "tree")
    project = git.folder / "torch/lib/c10d"
    (project / "CMakeLists.txt").write_text(PROJECT.format(file="switchml.cmake"))
    for file in ("try.cpp", "main.cpp"):
        (project / file).touch()
    done = run(["cmake", "-G", "Unix Makefiles", "-S", project, "-B", tmp_path / "made"], timeout=120)
    assert done.returncode == 0, done.tail
    line = (tmp_path / "made/CMakeFiles/try.dir/link.txt").read_text()
    places = [line.find(word) for word in ["libc10d_switchml.a", *LINKED[given], "-lglog"]]
    assert -1 not in places, line
    assert places[:-1] == sorted(places[:-1]), line
    assert "-lboost_program_options" in line
    assert ("-ldl" in line.replace("-lc10dl", "")) == ("DPDK" in given)
    flags = (tmp_path / "made/CMakeFiles/c10d_switchml.dir/flags.make").read_text()
    assert ("-O0" in flags) == (given == "DEBUG=1")
    assert "-std=gnu++17" in flags
