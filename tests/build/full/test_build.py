"""The stand-in project goes the whole way: from a patch to a repaired wheel that shows what the patch is for."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import uv

from build import clearing
from build.errors import CompileError, ProbeError, SourceError, WheelError
from build.full import engine, record, workspace
from build.full import plan as plans
from build.full.caching import CompilerCache
from build.full.engine import prove
from build.full.plan import Plan
from build.full.project import Project
from build.full.record import FullRecord
from build.full.toolchains import Kind
from build.overlay.symbols import needed, run_path
from build.record import read_json, write_json
from tests.build.full import standin
from tests.build.full.standin import ANSWER, FIXED, StandIn

pytestmark = pytest.mark.headers  # the stand-in is a module of Python

PYTHON = ".".join(platform.python_version_tuple()[:2])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    return standin.make(tmp_path_factory.mktemp("standin"))


@pytest.fixture(scope="module")
def cached(tiny: StandIn, module_cache: Path) -> Iterator[Path]:
    """A cache for the module, and an index that has the stand-in's requirement."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UV_FIND_LINKS", str(tiny.index))
        patch.delenv("MAX_JOBS", raising=False)
        yield module_cache


def plan(project: Project) -> Plan:
    return plans.make(project, Kind.SYSTEM, CompilerCache.NONE, 2)


@pytest.fixture(scope="module")
def stock(tiny: StandIn, cached: Path) -> Path:
    """The wheel without the patch, which a probe must fail on."""
    folder = cached / "stock"
    return folder / engine.build(plan(tiny.project("stock", PYTHON)), folder).wheel.name


@pytest.fixture(scope="module")
def dist(cached: Path) -> Path:
    return cached / "dist"


@pytest.fixture(scope="module")
def patched(tiny: StandIn, dist: Path, stock: Path) -> FullRecord:
    return engine.build(plan(patched_project(tiny, stock)), dist)


def patched_project(tiny: StandIn, stock: Path) -> Project:
    return standin.with_probe(tiny.project("mw1", PYTHON, tiny.patch(FIXED)), stock)


def test_the_wheel_shows_what_the_patch_is_for(patched: FullRecord, dist: Path) -> None:
    (probe,) = patched.probes
    assert (probe.stock != 0, probe.built, probe.as_expected) == (True, 0, True)
    assert all(check.passed for check in patched.checks)
    assert read_json(record.place(dist, PYTHON), FullRecord) == patched
    assert patched.provenance.patches[0].name == "0001-answer.patch"
    assert "tiny-runtime==1.0" in patched.installed
    assert any(item.startswith("cmake==") for item in patched.installed)


def test_version_tag_and_requirement_are_honest(patched: FullRecord, dist: Path, tmp_path: Path) -> None:
    short = f"cp{PYTHON.replace('.', '')}"
    assert re.fullmatch(rf"tinytorch-1\.0\+mw1-{short}-{short}-manylinux_2_\d+_x86_64\.whl", patched.wheel.name)
    tree = standin.unpacked(dist / patched.wheel.name, tmp_path)
    metadata = (tree / "tinytorch-1.0+mw1.dist-info" / "METADATA").read_text()
    assert "Requires-Dist: tiny-runtime==1.0\n" in metadata
    assert f"Tag: {short}-{short}-{patched.platform}\n" in (tree / "tinytorch-1.0+mw1.dist-info" / "WHEEL").read_text()
    assert b'"commit"' in (tree / "tinytorch-1.0+mw1.dist-info" / "multiworld.json").read_bytes()


def test_libraries_are_found_where_they_are(patched: FullRecord, dist: Path, tmp_path: Path) -> None:
    tree = standin.unpacked(dist / patched.wheel.name, tmp_path)
    library = tree / "tinytorch" / "lib" / "libtiny.so"
    assert "$ORIGIN/../../tiny_runtime/lib" in run_path(library).split(":")
    assert run_path(tree / "tinytorch" / "_C.so").split(":")[0] == "$ORIGIN/lib"
    # OpenMP's library is nobody's requirement and no part of a manylinux system: it comes along, under its own name.
    (copied,) = patched.copied
    assert copied.startswith("libgomp")
    assert copied in needed(library)
    assert (tree / "tinytorch.libs" / copied).is_file()
    assert not list(tree.rglob("libtinyruntime*"))


def test_nothing_of_this_machine_is_in_the_wheel(patched: FullRecord, dist: Path, cached: Path, tmp_path: Path) -> None:
    tree = standin.unpacked(dist / patched.wheel.name, tmp_path)
    for path in (item for item in tree.rglob("*") if item.is_file()):
        assert str(cached).encode() not in path.read_bytes(), path
        assert b"/nowhere/on/the/build/machine" not in path.read_bytes(), path


def test_pip_installs_it_with_its_requirement(patched: FullRecord, dist: Path, tiny: StandIn, tmp_path: Path) -> None:
    subprocess.run(
        [uv.find_uv_bin(), "venv", "-q", "--seed", "--python", sys.executable, tmp_path / "v"], check=True, timeout=60
    )
    python = tmp_path / "v" / "bin" / "python"
    command: list[str | Path] = [python, "-m", "pip", "install", "-q", "--no-index", "--find-links", tiny.index]
    command.append(dist / patched.wheel.name)
    subprocess.run(command, check=True, timeout=120)
    said = subprocess.run(
        [python, "-c", "import tinytorch; print(tinytorch.answer())"], capture_output=True, check=True, timeout=60
    )
    assert said.stdout == b"42\n"


def test_without_a_change_nothing_is_compiled(
    patched: FullRecord, tiny: StandIn, dist: Path, stock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(*_: object) -> Path:
        raise AssertionError("it was compiled again")

    monkeypatch.setattr(engine, "compile_wheel", compiled)
    assert engine.build(plan(patched_project(tiny, stock)), dist) == patched
    (dist / patched.wheel.name).rename(dist / "aside")
    try:
        with pytest.raises(AssertionError, match="compiled again"):
            engine.build(plan(patched_project(tiny, stock)), dist)
    finally:
        (dist / "aside").rename(dist / patched.wheel.name)


def test_the_same_input_gives_the_same_wheel(patched: FullRecord, tiny: StandIn, dist: Path, stock: Path) -> None:
    """Compiled anew in a folder of the same name: setuptools' and auditwheel's own times are not in the wheel."""
    project = patched_project(tiny, stock)
    shutil.rmtree(workspace.of(project).tree)
    record.place(dist, PYTHON).unlink()
    assert engine.build(plan(replace(project, probes=())), dist).wheel == patched.wheel
    write_json(record.place(dist, PYTHON), patched)


def test_a_probe_fails_on_a_wheel_without_the_patch(tiny: StandIn, stock: Path) -> None:
    with pytest.raises(ProbeError, match="does not show what it must: the answer is 42"):
        prove(standin.with_probe(tiny.project("stock", PYTHON), None), stock)


def test_a_probe_that_passes_on_stock_proves_nothing(patched: FullRecord, tiny: StandIn, dist: Path) -> None:
    wheel = dist / patched.wheel.name
    with pytest.raises(ProbeError, match="the answer is 42: exit status 0 on stock, 0 on this wheel"):
        prove(standin.with_probe(tiny.project("mw1", PYTHON), wheel), wheel)


def objects(project: Project) -> dict[str, int]:
    """Modification times (ns) of the object files in a project's workspace."""
    return {path.name: path.stat().st_mtime_ns for path in (workspace.of(project).tree / "build").rglob("*.o")}


def test_a_compile_error_keeps_what_was_built(tiny: StandIn, cached: Path) -> None:
    """As after two hours: a corrected patch compiles its own unit only, on top of the others."""
    folder = cached / "fix"
    wrong = tiny.project("fix", PYTHON, tiny.patch(FIXED.replace("return 1", "return one")))
    right = tiny.project("fix", PYTHON, tiny.patch(FIXED))
    with pytest.raises(CompileError) as caught:
        engine.build(plan(wrong), folder)
    assert "src/answer.cpp" in caught.value.cause
    assert "was not declared in this scope" in caught.value.cause
    assert "run the same command again" in caught.value.remedy
    assert list(folder.glob("*.whl")) == []
    before = objects(wrong)
    engine.build(plan(right), folder)
    assert before.items() <= objects(right).items()

    before = objects(right)
    with pytest.raises(CompileError, match=r"does not compile \(status \d+, after ") as caught:
        engine.build(plan(wrong), folder)
    assert re.search(r"the [5-9] steps that are done are kept", caught.value.remedy)
    later = tiny.project("fix", PYTHON, tiny.patch(FIXED.replace("return 1", "return 2 - 1")))
    engine.build(plan(later), folder)
    assert [name for name, time in objects(later).items() if before.get(name) != time] == ["answer.cpp.o"]


def test_a_build_that_names_another_version_is_refused(tiny: StandIn, cached: Path) -> None:
    project = tiny.project("fix", PYTHON, tiny.patch(FIXED))
    deaf = replace(project, environment={"TINY_BUILD_VERSION": "3.0"})
    with pytest.raises(WheelError, match=r"the build made version 3\.0, not 1\.0\+fix"):
        engine.build(plan(deaf), cached / "other")
    assert list((cached / "other").glob("*.whl")) == []


def test_a_submodule_that_is_not_checked_out(tiny: StandIn, cached: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny.repo, tmp_path / "repo", symlinks=True)
    shutil.rmtree(tmp_path / "repo" / "third_party" / "question")
    (tmp_path / "repo" / "third_party" / "question").mkdir()
    bare = replace(tiny, repo=tmp_path / "repo")
    with pytest.raises(SourceError, match="submodule third_party/question is not checked out") as caught:
        engine.build(plan(bare.project("bare", PYTHON)), cached / "bare")
    assert "submodule update --init --recursive" in caught.value.remedy


def test_every_compiler_runs_behind_the_cache(tiny: StandIn, cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in ccache's place writes down what it is asked to run, and runs it."""
    (cached / "bin").mkdir()
    program, seen = cached / "bin" / "ccache", cached / "seen"
    program.write_text(f'#!/bin/sh\necho "$CCACHE_DIR $*" >> {seen}\nexec "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    assert CompilerCache.AUTO.chosen() is CompilerCache.CCACHE
    behind = plans.make(tiny.project("behind", PYTHON), Kind.SYSTEM, CompilerCache.CCACHE, 2)
    engine.build(behind, cached / "behind")
    lines = seen.read_text().splitlines()
    for unit in ("answer.cpp", "sum.cpp", "module.cpp"):
        assert any(
            line.startswith(f"{cached / 'compiled' / 'ccache'} /") and " -c " in line and unit in line for line in lines
        )
    busy = [item for item in clearing.entries() if not clearing.free(item, really=False)]
    assert {"applied", "compiled", "full"} <= {item.kind for item in busy}, "this process still runs"


def test_the_answer_in_the_tree_is_the_stock_one(tiny: StandIn) -> None:
    """The build takes a copy: the user's repository is only read."""
    assert (tiny.repo / "src" / "answer.cpp").read_text() == ANSWER
    assert not (tiny.repo / "build").exists()
