"""The module of the role, run as Ansible runs it on a host: nothing of somebody else is touched."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uv

from build.paths import REPO
from tests.build.cluster.hosts import offer
from tests.build.official.server import Index
from tests.build.wheels.little_wheel import clean

MODULE = REPO / "ci" / "ansible" / "roles" / "multiworld_torch" / "library" / "multiworld_torch.py"
FOREIGN = "releases/20240101/app.rb", "shared/config.yml", "cache/note", "wheels/theirs.whl"


@dataclass(frozen=True, slots=True)
class Node:
    """A host whose wheels lie there already."""

    prefix: Path
    scratch: Path

    def do(self, state: str, *, check: bool = False, prefix: str | None = None, **asked: Any) -> dict[str, Any]:
        own = {"_ansible_check_mode": check, "state": state, "prefix": str(self.prefix) if prefix is None else prefix}
        done = subprocess.run(
            [sys.executable, MODULE],
            input=json.dumps({"ANSIBLE_MODULE_ARGS": {**asked, **own}}),
            env=clean() | {"HOME": str(self.scratch / "home")},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        assert bool(found.get("failed")) == bool(done.returncode)
        return found

    def lock(self, version: str, sha256: str = "", size: int = 0) -> str:
        index = Index()
        offer(index, version, self.scratch)
        ((name, data),) = index.files.items()
        hashes = f'{{ sha256 = "{sha256 or index.add(name, data)}" }}'
        path = self.scratch / name
        path.write_bytes(data)
        return (
            'lock-version = "1.0"\ncreated-by = "test"\n[[packages]]\nname = "torch-multiworld"\n'
            f'version = "{version}"\n'
            f'wheels = [{{ path = "{path}", size = {size or len(data)}, hashes = {hashes} }}]\n'
        )

    def install(self, version: str, **more: Any) -> dict[str, Any]:
        lock = self.lock(version)
        assert not self.do("claimed", lock=lock).get("failed")
        program = self.prefix / "cache" / "uv-program"
        if not program.exists():
            program.symlink_to(uv.find_uv_bin())
        for wheel in self.scratch.glob("torch_multiworld-*.whl"):  # as the role sends them
            shutil.copy(wheel, self.prefix / "cache" / "wheels")
        more["lock"] = lock
        made = self.do("made", release=f"m-{version}", **more)
        if made.get("failed") or made["host"]["outcome"] == "unchanged":
            return made
        return self.do("current", release=made["host"]["wanted"], **more)

    def ill(self, version: str) -> None:
        (self.scratch / "home" / "ill").write_text(version)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / "home").mkdir()
    return Node(tmp_path / "prefix", tmp_path)


def foreign(prefix: Path) -> dict[str, str]:
    """Put files of somebody else into a prefix, as Capistrano and people do."""
    for name in FOREIGN:
        (prefix / name).parent.mkdir(parents=True, exist_ok=True)
        (prefix / name).write_text(name)
    return {name: (prefix / name).read_text() for name in FOREIGN}


@pytest.mark.parametrize("prefix", ["", "relative", "/", "~", "~root", "/srv/../root/.", "../x", "$HOME"])
def test_a_prefix_that_cannot_be_one_of_ours(node: Node, prefix: str) -> None:
    assert "cannot be the prefix" in node.do("claimed", prefix=prefix)["msg"]


def test_a_folder_of_somebody_else_is_refused_and_stays(node: Node) -> None:
    there = foreign(node.prefix)
    for state in ("looked", "claimed", "made", "current"):
        assert "files of somebody else" in node.do(state, lock=node.lock("1.0"), release="m-1.0")["msg"]
    assert {str(path.relative_to(node.prefix)) for path in node.prefix.rglob("*") if path.is_file()} == there.keys()


def test_releases_are_switched_pruned_and_rolled_back_and_other_folders_stay(node: Node) -> None:
    first = node.install("1.0")
    assert first.get("changed"), first["msg"]
    there = foreign(node.prefix)
    assert not node.install("1.0")["changed"]
    for version in ("2.0", "3.0", "4.0"):
        found = node.install(version, keep=2)
    assert found["host"]["kept"] == ["m-4.0", "m-3.0", "m-2.0"]
    assert found["host"]["versions"] == {"torch-multiworld": "4.0"}
    assert {name: (node.prefix / name).read_text() for name in FOREIGN} == there
    assert not (node.prefix / "releases" / "m-1.0").exists()
    assert len(list(node.prefix.glob("cache/uv/archive-*/*"))) == 3  # what no release has is not in the cache either
    assert "kept are: m-4.0, m-3.0, m-2.0" in node.do("made", release="m-1.0")["msg"]
    assert "3 kept releases begin with 'm'" in node.do("made", release="m")["msg"]
    back = node.do("made", release="m-2")
    assert (back["host"]["wanted"], back["changed"]) == ("m-2.0", False)
    assert node.do("current", release="m-2.0")["host"]["outcome"] == "rolled back"
    assert node.do("made", release="m-2")["host"]["outcome"] == "unchanged"
    assert os.readlink(node.prefix / "current") == "releases/m-2.0"  # noqa: PTH115 - the text of the link


def test_what_is_ill_or_breaks_leaves_the_release_in_use(node: Node) -> None:
    node.install("1.0")
    node.ill("1.0")
    assert node.do("looked", doctor=True)["host"]["doctor"][0]["verdict"] == "fail", "to look is no failure"
    (node.prefix / "current" / "bin" / "multiworld").write_text("#!/bin/sh\n")
    assert "gives no verdicts" in node.do("looked", doctor=True)["host"]["doctor"][0]["found"]
    node.ill("2.0")
    assert "doctor finds failures: versions" in node.install("2.0")["msg"]
    lock = node.lock("3.0", sha256="0" * 64)
    shutil.copy(node.scratch / "torch_multiworld-3.0-py3-none-any.whl", node.prefix / "cache" / "wheels")
    bad = node.do("made", lock=lock, release="m-3.0")
    assert "Hash mismatch" in bad["msg"]
    node.ill("none")
    after = "readlink $PREFIX/current >> $PREFIX/../served; ! tail -n 1 $PREFIX/../served | grep -q 2.0"
    failed = node.install("2.0", after=after.replace("$PREFIX", str(node.prefix)))
    assert "the host runs m-1.0 as before" in failed["msg"]
    assert (node.scratch / "served").read_text().split() == ["releases/m-2.0", "releases/m-1.0"]
    assert node.do("looked")["host"]["release"] == "m-1.0"
    assert node.do("looked")["host"]["kept"] == ["m-1.0", "m-2.0"]
    again = node.install("2.0", again=True)["host"]["release"]
    assert again.startswith("m-2.0.20")
    assert node.do("made", lock=node.lock("2.0"), release="m-2.0")["host"]["outcome"] == "unchanged", "it uses that one"


def test_a_release_that_was_not_finished_is_removed_and_a_second_installation_waits(node: Node) -> None:
    node.install("1.0")
    half = node.prefix / "releases" / "m-2.0"
    (half / "lib").mkdir(parents=True)
    (half / ".multiworld").write_bytes((node.prefix / ".multiworld").read_bytes())
    with (node.prefix / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another installation is at work" in node.do("made", lock=node.lock("2.0"), release="m-2.0")["msg"]
    assert node.install("2.0")["host"]["kept"] == ["m-2.0", "m-1.0"]


def test_room_and_the_link_are_checked_first_and_a_dry_run_changes_nothing(node: Node) -> None:
    found = node.do("claimed", lock=node.lock("1.0", size=1 << 50))
    assert "the disk is full: the release needs 3221225536 MB" in found["msg"]
    assert node.do("claimed", check=True, lock=node.lock("1.0"))["changed"]
    assert not node.prefix.exists()
    node.install("1.0")
    (node.prefix / "current").unlink()
    (node.prefix / "current").symlink_to("/srv/theirs")
    assert "is not a link of this installation" in node.do("current", release="m-1.0")["msg"]
