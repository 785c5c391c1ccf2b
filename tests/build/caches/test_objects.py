"""Damage to cached objects, and to what a compiler reads: it ends in no object, and in no wheel."""

from __future__ import annotations

import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from build import seals
from build.overlay.model import Inputs
from build.paths import REPO
from tests.build.caches import damage
from tests.build.overlay import little as lt
from tests.build.overlay.little import NCCL_CPP, NCCL_H, Little

Damage = Callable[[Path], None]


@pytest.fixture
def given(little: Little, tmp_path: Path, own_cache: Path) -> Inputs:
    """Inputs with a wheel and a header package that lie in the cache, sealed."""

    def fill(part: Path) -> None:
        shutil.copytree(little.wheel, part, dirs_exist_ok=True)

    wheel = seals.built(own_cache / "unpacked" / "w", "the wheel", fill)
    package = seals.built(
        own_cache / "headers" / "p", "headers", lambda part: lt.write(part, {"include/pin.h": "// pin\n"})
    )
    unit = {NCCL_CPP: f"#include <pin.h>\n#include <{NCCL_H}>\nint f() {{ return 1; }}\n"}
    made = lt.inputs(replace(little, wheel=wheel), tmp_path / "tree", unit)
    return replace(made, headers=(package / "include",))


@pytest.mark.parametrize("harm", damage.SOME)
@pytest.mark.parametrize("name", ["unit.o", "entry.json"])
def test_object(harm: Damage, name: str, given: Inputs) -> None:
    (first,) = lt.compiled(given, NCCL_CPP)
    harm(first.path.parent / name)
    (second,) = lt.compiled(given, NCCL_CPP)
    assert replace(second, seconds=0.0) == replace(first, seconds=0.0)
    assert seals.sha256_of(second.path) == first.sha256
    (third,) = lt.compiled(given, NCCL_CPP)
    assert third.seconds == 0.0


@pytest.mark.parametrize("harm", [damage.entry_file, damage.entry_empty])
def test_object_as_a_whole(harm: Damage, given: Inputs) -> None:
    (first,) = lt.compiled(given, NCCL_CPP)
    harm(first.path.parent)
    (second,) = lt.compiled(given, NCCL_CPP)
    assert second.sha256 == first.sha256


def test_any_byte_of_an_entry(given: Inputs) -> None:
    """Damage that leaves it JSON is damage too: a path or a name in it may be another one."""
    (first,) = lt.compiled(given, NCCL_CPP)
    entry = first.path.parent / "entry.json"
    good = entry.read_bytes()
    entry.write_bytes(good.replace(b"nccl.cpp", b"ncck.cpp"))
    (second,) = lt.compiled(given, NCCL_CPP)
    assert (second.unit, second.includes) == (first.unit, first.includes)


_COMPILE = """
import pickle, sys
from pathlib import Path
from tests.build.overlay import little as lt
given, unit = pickle.loads(Path(sys.argv[1]).read_bytes())
lt.compiled(given, unit)
"""


def test_what_a_killed_compiler_left(given: Inputs, own_cache: Path, tmp_path: Path) -> None:
    """The compiler writes half an object and kills the build that has started it."""
    script = tmp_path / "killing-g++"
    script.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho half > "$2"\nkill -KILL $PPID\n')
    script.chmod(0o755)
    killing = replace(given, toolchain=replace(given.toolchain, cxx=script))
    (tmp_path / "inputs").write_bytes(pickle.dumps((killing, NCCL_CPP)))
    command = [sys.executable, "-c", _COMPILE, str(tmp_path / "inputs")]
    done = subprocess.run(command, cwd=REPO, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    (left,) = (own_cache / "objects").glob(".*.part")
    assert (left / "unit.o").read_text() == "half\n"
    (made,) = lt.compiled(given, NCCL_CPP)
    assert seals.sha256_of(made.path) == made.sha256
    assert list((own_cache / "objects").glob(".*")) == []
