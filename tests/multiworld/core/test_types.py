"""The types of everything public, as a program that is checked strictly sees them."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import multiworld
from multiworld import Group, MultiWorld, Supervisor, World
from multiworld.communicator import WorldCommunicator
from multiworld.manager import WorldManager
from multiworld.observe.endpoint import Endpoint
from multiworld.observe.metrics import Metrics
from multiworld.observe.status_file import StatusFile

PROGRAM = Path(__file__).with_name("public_surface.py")
ROOT = Path(__file__).resolve().parents[3]
CLASSES = (
    MultiWorld,
    World,
    Group,
    Supervisor,
    StatusFile,
    Metrics,
    Endpoint,
    WorldManager,
    WorldCommunicator,
)
OTHERS = {"MismatchInWorld", "WatchDog", "TCPStore", "ValueError", "KeyboardInterrupt"}
#: what only prometheus calls, and what a world or a group is made of
UNNAMED = {"collect", "describe", "defaults", "gid", "digest"}
#: of torch only what the program uses: all of it takes four times as long to read
SETTINGS = """
[mypy]
strict = true
[mypy-torch.*]
follow_imports = skip
[mypy-multiworld.*,torch,torch._C,torch._tensor,torch.distributed,torch.distributed.distributed_c10d,\
torch._C._distributed_c10d]
follow_imports = silent
"""


def _methods(cls: type) -> Iterator[str]:
    yield from (name for name in dir(cls) if not name.startswith("_"))


def test_the_program_names_everything_public() -> None:
    tree = ast.parse(PROGRAM.read_text(encoding="utf-8"))
    named = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    named |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    public = {name for cls in CLASSES for name in _methods(cls)} - UNNAMED
    assert sorted((public | set(multiworld.__all__)) - named) == []


@pytest.mark.slow
def test_a_strict_program_has_no_type_errors(tmp_path: Path) -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed: locks/types.txt")
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", str(PROGRAM)]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_program_runs(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, str(PROGRAM), str(tmp_path / "store"), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("cls", CLASSES)
def test_docstrings_refer_only_to_what_is_public(cls: type) -> None:
    texts = [inspect.getdoc(cls) or "", *(inspect.getdoc(getattr(cls, name)) or "" for name in _methods(cls))]
    referred = {name for text in texts for name in re.findall(r"``([A-Z]\w*[a-z]\w*)\b", text)}
    known = {*multiworld.__all__, *(named.__name__ for named in CLASSES)} | OTHERS
    assert sorted(referred - known) == []
