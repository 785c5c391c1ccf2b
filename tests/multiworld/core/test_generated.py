"""The synchronous twins are generated from the awaitable methods, and a stale one is noticed."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from multiworld.worlds.group import Group
from multiworld.worlds.multi_world import MultiWorld, SyncMultiWorld
from multiworld.worlds.twins import SyncGroup
from multiworld.worlds.world import SyncWorld, World

ROOT = Path(__file__).resolve().parents[3]
GENERATOR = ROOT / "tools/generate_sync.py"


def generate(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(GENERATOR), "--root", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "multiworld", tmp_path / "multiworld", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    return tmp_path


@pytest.mark.parametrize(
    ("source", "before", "after"),
    [
        ("group.py", "async def barrier(self, *,", "async def barrier(self, hard: bool, *,"),
        ("group.py", '"send", timeout)', '"send", None)'),
        ("world.py", "async def leave(self)", "async def leave(self, linger: float = 1.0)"),
        ("multi_world.py", "async def close(self)", "async def close(self, linger: float = 1.0)"),
    ],
)
def test_a_changed_method_makes_its_twin_stale(tree: Path, source: str, before: str, after: str) -> None:
    path = tree / "multiworld/worlds" / source
    text = path.read_text()
    assert text.count(before) == 1
    path.write_text(text.replace(before, after))
    done = generate(tree, "--check")
    assert done.returncode == 1
    assert "multiworld/worlds/twins.py" in done.stderr
    assert "what to do: python tools/generate_sync.py" in done.stderr
    assert generate(tree).returncode == 0
    assert generate(tree, "--check").returncode == 0
    assert after.replace("async ", "") in (tree / "multiworld/worlds/twins.py").read_text()


@pytest.mark.parametrize(("awaitable", "twin"), [(Group, SyncGroup), (World, SyncWorld), (MultiWorld, SyncMultiWorld)])
def test_every_awaitable_method_has_a_documented_twin(awaitable: type, twin: type) -> None:
    names = [name for name, value in inspect.getmembers(awaitable, inspect.iscoroutinefunction) if name[0] != "_"]
    assert names
    for name in names:
        assert inspect.signature(getattr(twin, name)) == inspect.signature(getattr(awaitable, name))
        assert getattr(twin, name).__doc__
