"""A whole overlay: linked, checked, deterministic, and in force in a real process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from elftools.elf.elffile import ELFFile

from build.errors import CompileError, NeedsFullBuildError, OverlayCheckError, PatchError
from build.overlay import checks
from build.overlay.build import build_overlay
from build.overlay.link import handler_registration
from build.overlay.model import Inputs, Object, Overlay
from build.overlay.symbols import needed, run_path
from build.runtime.multiworld_torch_overlay._load import build_id
from tests.build.overlay import little as lt
from tests.build.overlay.little import HIDDEN_CPP, NCCL_CPP, RECORDER_CPP, Little

EDIT = lt.edited(NCCL_CPP, "return 1 +", "return 100 +")
RECORD = lt.edited(RECORDER_CPP, "return x + 1", "return x + 1000")
_PROGRAM = """
import ctypes, json, sys
if sys.argv[1:]:
    ctypes.CDLL(sys.argv[1])
import torch
VALUES = torch.answer(), torch.version(), torch.handlers(), torch.call("dump", 1)
"""

pytestmark = pytest.mark.usefixtures("module_cache")


def build(little: Little, folder: Path, edits: Mapping[str, str]) -> Overlay:
    return build_overlay(lt.inputs(little, folder / "tree", edits), folder / "out")


def in_process(
    little: Little, overlay: Overlay | None, site: Path, program: str = "print(json.dumps(VALUES))"
) -> subprocess.CompletedProcess[str]:
    """Import the miniature with the overlay where the overlay wheel has it."""
    shutil.copytree(little.wheel, site)
    library = site / "package" / "lib" / "libtorch_mw.so"
    if overlay:
        library.parent.mkdir(parents=True)
        shutil.copy(overlay.path, library)
    command = [sys.executable, "-c", _PROGRAM + program, *([str(library)] if overlay else [])]
    return subprocess.run(
        command, env={"PYTHONPATH": str(site)}, capture_output=True, text=True, timeout=60, check=False
    )


def test_stock_code_runs_the_overlay(little: Little, tmp_path: Path) -> None:
    stock = in_process(little, None, tmp_path / "stock")
    assert json.loads(stock.stdout) == [41, 10, 1, 2]
    done = in_process(little, build(little, tmp_path, EDIT | RECORD), tmp_path / "site")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [140, 10, 1, 1001]


def test_a_handler_of_the_overlay_is_in_force(little: Little, tmp_path: Path) -> None:
    """Stock registers the name first, with a lambda of its own."""
    edit = lt.edited(RECORDER_CPP, "return dump(x);", "return 5000 + dump(x);")
    done = in_process(little, build(little, tmp_path, edit), tmp_path / "site")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [41, 10, 1, 5002]


def test_the_unit_that_defines_the_registration_registers_too(little: Little, tmp_path: Path) -> None:
    """`import torch` aborted: a handler of the unit itself came by no call that the linker could redirect."""
    registers = """
static struct Ping {
  Ping() { registerHandler("ping", [](int x) { return 7 * x; }); }
} ping;
}
extern "C" int count_threads();
"""
    unit = "torch/csrc/distributed/c10d/control_plane/Handlers.cpp"
    (text,) = lt.edited(unit, '}\nextern "C" int count_threads();\n', registers).values()
    stock = lt.inputs(little, tmp_path / "stock", {unit: text})
    other = lt.relink_cpu(little, stock.tree, tmp_path / "wheel")
    patch = {unit: text.replace("7 * x", "9 * x").replace('"Handler " + name', '"The handler " + name')}
    made = build_overlay(lt.inputs(other, tmp_path / "tree", patch), tmp_path / "out")
    program = "import torch; print(torch.call('ping', 2), torch.call('dump', 1), torch.handlers())"
    done = in_process(other, made, tmp_path / "site", program)
    assert (done.returncode, done.stdout) == (0, "18 2 2\n"), done.stderr
    assert in_process(other, None, tmp_path / "plain", program).stdout == "14 2 2\n"


def test_the_registration_is_replaced_only_where_there_is_one(little: Little, tmp_path: Path) -> None:
    with_one, without = build(little, tmp_path / "a", RECORD), build(little, tmp_path / "b", EDIT)
    assert "registerHandler" in handler_registration(with_one.objects)
    assert handler_registration(without.objects) == ""
    assert any("registerHandler" in name for name in with_one.replaced)


def test_registrations_that_no_shim_makes_safe(little: Little, tmp_path: Path) -> None:
    head = "namespace torch { struct Library { void _def(int); }; }\ntorch::Library& library();\n"
    with pytest.raises(OverlayCheckError, match=r"register twice: torch::Library::_def\(int\)"):
        build(little, tmp_path, {NCCL_CPP: head + "static int at_load = (library()._def(1), 0);\n"})
    (unit := tmp_path / "unit.cpp").write_text(head + "void later() { library()._def(1); }\n")
    lt.shell("g++", "-c", unit, "-o", tmp_path / "unit.o")
    assert handler_registration([Object("unit.cpp", tmp_path / "unit.o", "", (), 0.0, "")]) == ""


def test_what_is_known_about_it(little: Little, tmp_path: Path) -> None:
    made = build(little, tmp_path, EDIT)
    assert [item.unit for item in made.objects] == [NCCL_CPP, HIDDEN_CPP]
    assert made.replaced == ("_ZN5torch4cuda4nccl6answerEv", "_ZN5torch4cuda4nccl7versionEv")
    assert all(check.passed for check in made.checks)
    assert made.build_id == build_id(made.path) != ""
    assert made.made_for == little.release.wheel.libtorch_cuda_build_ids
    assert str(tmp_path) not in " ".join(made.flags)


def test_it_asks_for_what_stock_asks_for(little: Little, tmp_path: Path) -> None:
    made = build(little, tmp_path, EDIT)
    assert needed(made.path)[:4] == ("libtorch_cuda.so", "libtorch_cpu.so", "libc10_cuda.so", "libc10.so")
    assert {"libnccl.so.2", "libcudart.so.12", "libtorch_python.so"} <= set(needed(made.path))
    assert run_path(made.path) == "$ORIGIN/../../torch/lib:$ORIGIN/../../nvidia/lib:$ORIGIN"
    assert _version_of(made.path, "cudaGetDevice") == "libcudart.so.12"
    assert _version_of(made.path, "ncclGetVersion") == ""


def _version_of(library: Path, symbol: str) -> str:
    with library.open("rb") as stream:
        elf = ELFFile(stream)
        names = [item.name for item in elf.get_section_by_name(".dynsym").iter_symbols()]
        versions = elf.get_section_by_name(".gnu.version")
        index = versions.get_symbol(names.index(symbol))["ndx"]
        wanted = elf.get_section_by_name(".gnu.version_r")
        return str(wanted.get_version(index)[1].name) if isinstance(index, int) else ""


def test_two_builds_in_different_folders_give_the_same_bytes(
    little: Little, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for place in ("here", "some/where/else"):
        monkeypatch.setenv("MULTIWORLD_CACHE", str(tmp_path / place / "cache"))
        made.append(build(little, tmp_path / place, EDIT | RECORD))
    assert made[0].path.read_bytes() == made[1].path.read_bytes()
    assert str(tmp_path).encode() not in made[0].path.read_bytes()


def test_a_function_served_by_the_old_code_is_named(little: Little, tmp_path: Path) -> None:
    """answer() and helper() lie around version() in the stock library; the patched unit has lost it."""
    given = _without_middle(little, tmp_path)
    with pytest.raises(OverlayCheckError, match=r"missing: torch::cuda::nccl::middle\(\)"):
        build_overlay(given, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def _without_middle(little: Little, tmp_path: Path) -> Inputs:
    """A stock library with a third function between the two, and a tree without it."""
    unit = lt.edited(NCCL_CPP, "int version() {", "TORCH_API int middle() { return 5; }\nint version() {")
    stock = lt.inputs(little, tmp_path / "stock", unit)
    other = lt.relink_cuda(little, stock.tree, tmp_path / "wheel")
    given = lt.inputs(other, tmp_path / "tree", EDIT)
    whole = build_overlay(lt.inputs(other, tmp_path / "whole", unit), tmp_path / "good")
    assert checks.half_replaced(given, whole.path, whole.objects) == frozenset()
    return given


def test_an_undefined_symbol_does_not_link(little: Little, tmp_path: Path) -> None:
    edit = lt.edited(NCCL_CPP, "return 1 +", "extern int from_nowhere(); return from_nowhere() +")
    with pytest.raises(CompileError, match="does not link") as caught:
        build(little, tmp_path, edit)
    assert "from_nowhere" in caught.value.cause
    assert list((tmp_path / "out").iterdir()) == []


def test_another_build_of_the_wheel_is_refused_before_compiling(
    little: Little, tmp_path: Path, own_cache: Path
) -> None:
    wheel = little.release.wheel
    given = lt.inputs(little, tmp_path / "tree", EDIT)
    other = lt.with_release(given, wheel=msgspec.structs.replace(wheel, libtorch_cuda_build_ids={lt.PYTHON: "f" * 40}))
    with pytest.raises(OverlayCheckError) as caught:
        build_overlay(other, tmp_path / "out")
    assert "f" * 40 in caught.value.what
    assert wheel.libtorch_cuda_build_ids[lt.PYTHON] in caught.value.what
    assert not (own_cache / "objects").exists()


def test_units_of_the_python_bindings_are_refused(little: Little, tmp_path: Path) -> None:
    """Of one, the plan would know that the overlay is for one Python version; this one only comes along."""
    given = lt.inputs(little, tmp_path / "tree", EDIT, extra="torch/csrc/Module.cpp")
    with pytest.raises(NeedsFullBuildError, match=r"libtorch_python .*Module\.cpp"):
        build_overlay(given, tmp_path / "out")


def test_a_registry_is_not_filled_twice(tmp_path: Path) -> None:
    unit = tmp_path / "unit.cpp"
    unit.write_text("""
#include <string>
namespace c10 {
template <class T> struct Registry { void Register(const std::string&, T) { ++count; } int count = 0; };
}
c10::Registry<int>& devices();
static int done = (devices().Register("tcp", 1), 0);
""")
    lt.shell("g++", "-c", unit, "-o", tmp_path / "unit.o")
    with pytest.raises(OverlayCheckError, match=r"register twice: c10::Registry<int>::Register"):
        handler_registration([Object("unit.cpp", tmp_path / "unit.o", "", (), 0.0, "")])


def test_a_change_that_the_compiler_does_not_get_is_refused(little: Little, tmp_path: Path) -> None:
    """Also one that moves lines; one of comments alone is nobody's mistake."""
    absent = "#ifdef USE_ROCM\nthis would never compile;\n#endif\nint version() {"
    edit = lt.edited(NCCL_CPP, "int version() {", absent)
    given = replace(lt.inputs(little, tmp_path / "tree", edit), stock=little.tree)
    with pytest.raises(PatchError, match=rf"no effect in the wheel on {NCCL_CPP}"):
        build_overlay(given, tmp_path / "out")
    comment = lt.edited(NCCL_CPP, "int version() {", "// the version\nint version() {")
    build_overlay(replace(lt.inputs(little, tmp_path / "other", comment), stock=little.tree), tmp_path / "out")


def test_a_unit_of_no_library_is_refused(little: Little, tmp_path: Path) -> None:
    """The lists name it for libtorch_cuda, of which the wheel's one has nothing: as of libtorch_cuda_linalg's."""
    unit = "torch/csrc/cuda/Elsewhere.cpp"
    text = "#include <torch/csrc/Export.h>\nnamespace torch::cuda {\nTORCH_API int elsewhere() {\n  return 1;\n}\n}\n"
    tree = lt.inputs(little, tmp_path / "stock", {unit: text}).tree
    other = replace(little, tree=tree)
    lists = (tree / "build_variables.bzl").read_text()
    (tree / "build_variables.bzl").write_text(lists + f"more_cuda_sources = ['{unit}']\n")
    given = lt.inputs(other, tmp_path / "tree", {unit: text.replace("return 1", "return 2")})
    with pytest.raises(OverlayCheckError, match=rf"in none of them: {unit}, which exports torch::cuda::elsewhere"):
        build_overlay(given, tmp_path / "out")
