"""Objects are compiled once per input, hold nothing of this machine, and leave nothing behind when they fail."""

from __future__ import annotations

import errno
import os
import queue
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from build.errors import CompileError
from build.overlay import closure
from build.overlay.model import Inputs, Object
from build.overlay.toolchain import Toolchain
from build.releases import Define
from tests.build.overlay import little as lt
from tests.build.overlay.little import HIDDEN_CPP, NCCL_CPP, NCCL_H, USER_CPP, Little


@dataclass(frozen=True, slots=True)
class Counting:
    """A compiler that counts its runs."""

    toolchain: Toolchain
    log: Path

    @property
    def runs(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0


@pytest.fixture
def compiler(tmp_path: Path) -> Counting:
    script, log = tmp_path / "counting-g++", tmp_path / "runs"
    script.write_text(f'#!/bin/sh\necho "$@" >> "{log}"\nexec g++ "$@"\n')
    script.chmod(0o755)
    return Counting(Toolchain(script, "counting g++", 12), log)


def compile_one(given: Inputs, compiler: Counting, unit: str = NCCL_CPP) -> Object:
    return lt.compiled(replace(given, toolchain=compiler.toolchain), unit)[0]


@pytest.mark.usefixtures("own_cache")
def test_same_input_is_compiled_once(little: Little, tmp_path: Path, compiler: Counting) -> None:
    given = lt.inputs(little, tmp_path / "tree", {NCCL_CPP: "int f() { return 1; }\n"})
    first, second = compile_one(given, compiler), compile_one(given, compiler)
    assert compiler.runs == 1
    assert (second.sha256, second.seconds) == (first.sha256, 0.0)
    assert first.seconds > 0


@pytest.mark.usefixtures("own_cache")
def test_a_changed_source_is_compiled_again(little: Little, tmp_path: Path, compiler: Counting) -> None:
    given = lt.inputs(little, tmp_path / "tree", lt.edited(NCCL_CPP, "return 1 +", "return 2 +"))
    first = compile_one(given, compiler)
    lt.write(given.tree, lt.edited(NCCL_CPP, "return 1 +", "return 3 +"))
    assert compile_one(given, compiler).sha256 != first.sha256
    assert compiler.runs == 2


@pytest.mark.usefixtures("own_cache")
def test_a_changed_header_of_the_tree_is_noticed(little: Little, tmp_path: Path, compiler: Counting) -> None:
    """The header is not in the wheel: the unit's own text and the flags stay the same."""
    edits = {NCCL_CPP: "#include <torch/csrc/cuda/Own.h>\nint f() { return OWN; }\n"}
    given = lt.inputs(little, tmp_path / "tree", edits)
    header = {"torch/csrc/cuda/Own.h": "#define OWN 1\n"}
    lt.write(given.tree, header)
    first = compile_one(given, compiler)
    lt.write(given.tree, dict.fromkeys(header, "#define OWN 2\n"))
    assert compile_one(given, compiler).sha256 != first.sha256


@pytest.mark.usefixtures("own_cache")
def test_a_header_that_the_series_changes_only_now_is_noticed(
    little: Little, tmp_path: Path, compiler: Counting
) -> None:
    """Before, the unit read the wheel's copy, which the stored entry says nothing about."""
    unit = {NCCL_CPP: f"#include <{NCCL_H}>\nint f() {{ return (int)torch::cuda::nccl::Result::NumResults; }}\n"}
    given = lt.inputs(little, tmp_path / "tree", unit)
    first = compile_one(given, compiler)
    header = lt.edited(NCCL_H, "NumResults = 1", "NumResults = 8")
    lt.write(given.tree, header)
    again = compile_one(replace(given, changed=(*given.changed, *header)), compiler)
    assert again.sha256 != first.sha256


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("name", ["CPATH", "CPLUS_INCLUDE_PATH"])
def test_headers_come_from_the_inputs_alone(
    name: str, little: Little, tmp_path: Path, compiler: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPATH comes before the pinned headers, the other behind them; neither is in the cache's key."""
    lt.write(tmp_path, {"pinned/pin.h": "#define PIN 1\n", "stray/pin.h": "#define PIN 2\n", "stray/stray.h": ""})
    unit = "#include <pin.h>\n#if PIN != 1 || __has_include(<stray.h>)\n#error stray\n#endif\n"
    given = replace(lt.inputs(little, tmp_path / "tree", {NCCL_CPP: unit}), headers=(tmp_path / "pinned",))
    monkeypatch.setenv(name, str(tmp_path / "stray"))
    assert "headers:pin.h" in compile_one(given, compiler).includes


@pytest.mark.usefixtures("own_cache")
def test_changed_flags_compile_again(little: Little, tmp_path: Path, compiler: Counting) -> None:
    given = lt.inputs(little, tmp_path / "tree", {NCCL_CPP: "int f() { return VALUE; }\n"})
    one, two = (
        compile_one(lt.with_release(given, defines=(Define(macro=f"VALUE={n}", reason="test"),)), compiler)
        for n in (1, 2)
    )
    assert one.sha256 != two.sha256


def test_a_damaged_object_is_not_used(little: Little, tmp_path: Path, own_cache: Path, compiler: Counting) -> None:
    given = lt.inputs(little, tmp_path / "tree", {})
    first = compile_one(given, compiler)
    first.path.write_bytes(first.path.read_bytes()[:100])
    assert compile_one(given, compiler).sha256 == first.sha256
    assert compiler.runs == 2
    assert first.path.is_relative_to(own_cache)


def test_bytes_do_not_depend_on_where_things_lie(
    little: Little, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit = lt.edited(NCCL_CPP, "return 1 +", "return __FILE__[0] + __builtin_strlen(__FILE__) +")
    made: list[Object] = []
    for place in ("one", "another/much/longer"):
        monkeypatch.setenv("MULTIWORLD_CACHE", str(tmp_path / place / "cache"))
        given = lt.inputs(little, tmp_path / place / "tree", edit)
        made += lt.compiled(given, NCCL_CPP)
    assert made[0].path != made[1].path
    assert made[0].path.read_bytes() == made[1].path.read_bytes()
    assert str(tmp_path).encode() not in made[0].path.read_bytes()


def test_records_name_files_by_root(little: Little, tmp_path: Path, own_cache: Path) -> None:
    given = lt.inputs(little, tmp_path / "tree", lt.edited(NCCL_H, "answer();", "answer();  //"))
    (made,) = lt.compiled(given, NCCL_CPP)
    assert {f"tree:{NCCL_CPP}", f"tree:{NCCL_H}", "wheel:torch/csrc/cuda/Secret.h"} <= set(made.includes)
    assert not [name for name in made.includes if str(tmp_path) in name]
    assert own_cache.is_dir()


def test_a_unit_that_does_not_compile_says_why_and_leaves_nothing(
    little: Little, tmp_path: Path, own_cache: Path
) -> None:
    given = lt.inputs(little, tmp_path / "tree", {NCCL_CPP: '#include "absent/thing.h"\n'})
    with pytest.raises(CompileError, match=NCCL_CPP) as caught:
        lt.compiled(given, NCCL_CPP)
    assert "absent/thing.h" in caught.value.cause
    assert [path for path in own_cache.rglob("*") if path.is_file() and path.suffix != ".lock"] == []


@pytest.mark.usefixtures("own_cache")
def test_flags_of_a_single_unit(little: Little, tmp_path: Path, compiler: Counting) -> None:
    """The build files of the release set a macro for one file: the release has to say so, and no other unit gets it."""
    flags = f'set_source_files_properties(${{SOURCES}}/{NCCL_CPP} PROPERTIES COMPILE_FLAGS "-Wno-all -DOWN=1")\n'
    edits = {NCCL_CPP: "int f() { return OWN; }\n", HIDDEN_CPP: "int OWN;\n", "caffe2/CMakeLists.txt": flags}
    given = lt.inputs(little, tmp_path / "tree", edits)
    with pytest.raises(CompileError, match="-DOWN=1") as caught:
        compile_one(given, compiler)
    assert "--define" in caught.value.remedy
    given = lt.with_release(given, defines=(Define(macro="OWN=1", reason="test", units=(NCCL_CPP,)),))
    compile_one(given, compiler)
    compile_one(given, compiler, HIDDEN_CPP)
    assert ["-DOWN=1" in line for line in compiler.log.read_text().splitlines()] == [True, False]


@pytest.mark.usefixtures("own_cache")
def test_flags_of_a_single_unit_that_are_no_macros(little: Little, tmp_path: Path, compiler: Counting) -> None:
    flags = f'set_source_files_properties(${{SOURCES}}/{NCCL_CPP} PROPERTIES COMPILE_FLAGS "-fno-openmp")\n'
    edits = {NCCL_CPP: "int f() { return 1; }\n", "caffe2/CMakeLists.txt": flags}
    with pytest.raises(CompileError, match="-fno-openmp") as caught:
        compile_one(lt.inputs(little, tmp_path / "tree", edits), compiler)
    assert "--define" not in caught.value.remedy


@pytest.mark.usefixtures("own_cache")
def test_one_failure_ends_the_other_compilers(little: Little, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other compiler, and what it started, would run for a minute."""
    monkeypatch.setattr(closure, "jobs", lambda _: 2)  # a machine with one core, or little memory, has one
    script, started = tmp_path / "slow-g++", tmp_path / "started"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *Secret*) while [ ! -e "{started}" ]; do :; done; exit 1;; esac\n'
        f"touch '{started}'; sleep 61; exit 0\n"
    )
    script.chmod(0o755)
    given = lt.inputs(little, tmp_path / "tree", {})
    slow = replace(given, toolchain=Toolchain(script, "slow", 12))
    began = time.monotonic()
    with pytest.raises(CompileError, match="Secret"):
        lt.compiled(slow, NCCL_CPP, HIDDEN_CPP)
    assert time.monotonic() - began < 50


@pytest.mark.usefixtures("own_cache")
def test_no_more_compilers_at_once_than_asked_for(
    little: Little, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    script, busy, more = tmp_path / "lone-g++", tmp_path / "busy", tmp_path / "more"
    script.write_text(f'#!/bin/sh\nmkdir "{busy}" || touch "{more}"\ng++ "$@"\nsleep 0.2\nrmdir "{busy}"\n')
    script.chmod(0o755)
    given = replace(lt.inputs(little, tmp_path / "tree", {}), toolchain=Toolchain(script, "lone", 12), jobs=1)
    lt.compiled(given, NCCL_CPP, HIDDEN_CPP, USER_CPP)
    assert not more.exists()


@pytest.mark.usefixtures("own_cache")
def test_output_that_cannot_be_written_ends_the_build(
    little: Little, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as `build-2.6.0 | head`: nobody waits for a unit whose thread has ended with an error."""

    def closed(_: str) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    monkeypatch.setattr(closure, "note", closed)
    given, ended = lt.inputs(little, tmp_path / "tree", {}), queue.SimpleQueue[OSError]()

    def compiled() -> None:
        try:
            lt.compiled(given, NCCL_CPP)
        except OSError as error:
            ended.put(error)

    threading.Thread(target=compiled, daemon=True).start()
    assert isinstance(ended.get(timeout=60), BrokenPipeError)
