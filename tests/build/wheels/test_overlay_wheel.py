"""The overlay wheel beside the official torch: in force without a file of torch changed."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
import uv
from packaging.metadata import Metadata

from build.errors import WheelError
from build.wheels import overlay
from build.wheels.archive import check_archive
from tests.build.overlay.little import Little
from tests.build.wheels import little_wheel as lw
from tests.build.wheels.conftest import Made
from tests.build.wheels.test_archive import streamed
from tests.build.wheels.test_patched import VERIFY

PACKAGE = "multiworld_torch_overlay"
INFO = f"{PACKAGE}-9.9.0+cu124.mw1.dist-info"
STATE = f"import torch, {PACKAGE} as o; print(torch.answer(), o.state())"


def test_what_is_in_it(made: Made) -> None:
    found = streamed(made.alone)
    assert made.alone.name == f"{PACKAGE}-9.9.0+cu124.mw1-py3-none-{made.tag}.whl"
    assert found[f"{PACKAGE}/lib/libtorch_mw.so"] == made.overlay.path.read_bytes()
    assert found[f"{PACKAGE}.pth"].startswith(f"import {PACKAGE};".encode())
    facts = json.loads(found[f"{PACKAGE}/overlay.json"])
    assert facts["build_ids"] == list(made.overlay.made_for.values())
    metadata = Metadata.from_email(found[f"{INFO}/METADATA"])  # it raises for what is not valid in that version
    assert (metadata.metadata_version, metadata.license_expression) == ("2.4", "Apache-2.0 AND BSD-3-Clause")
    assert [f"{INFO}/licenses/{name}" for name in metadata.license_files or []] == [
        name for name in found if "/licenses/" in name
    ]
    assert [str(need) for need in metadata.requires_dist or []] == ["torch==9.9.0"]
    assert (metadata.description or "").startswith("# multiworld-torch-overlay")
    assert f"Tag: py3-none-{made.tag}\n".encode() in found[f"{INFO}/WHEEL"]
    assert check_archive(made.alone) == len(found)


def test_pytorchs_licence_goes_with_its_code(made: Made, little: Little, tmp_path: Path) -> None:
    found = streamed(made.alone)
    assert found[f"{INFO}/licenses/pytorch/LICENSE"] == lw.DIST_INFO["LICENSE"].encode()
    assert found[f"{INFO}/licenses/pytorch/NOTICE"] == lw.DIST_INFO["NOTICE"].encode()
    bare = {name: data for name, data in lw.members(little).items() if not name.endswith("/LICENSE")}
    odd = lw.write_wheel(tmp_path / lw.NAME, bare)
    with pytest.raises(WheelError, match="no LICENSE"):
        overlay.assemble(made.release, odd, made.overlay, made.tag, {}, tmp_path / "dist")
    assert not (tmp_path / "dist").exists()


def test_two_builds_give_the_same_bytes(made: Made, tmp_path: Path) -> None:
    again = overlay.assemble(made.release, made.official, made.overlay, made.tag, lw.DOCUMENTS, tmp_path)
    assert again.read_bytes() == made.alone.read_bytes()


def test_the_loader_is_written_for_the_oldest_python_of_torch(made: Made) -> None:
    sources = {name: data for name, data in streamed(made.alone).items() if name.endswith(".py")}
    assert len(sources) == 3
    for data in sources.values():
        ast.parse(data, feature_version=(3, 8))


def test_beside_the_official_wheel(made: Made, python: Path) -> None:
    """pip checks that the requirement holds: 9.9.0 is what the overlay asks for."""
    lw.call(python, "-m", "pip", "install", "--no-deps", made.official)
    lw.call(uv.find_uv_bin(), "pip", "install", "--python", python, made.alone)
    assert "No broken requirements" in lw.call(python, "-m", "pip", "check")
    assert lw.call(python, "-c", STATE) == "140 loaded\n"
    assert json.loads(lw.call(python, "-c", VERIFY).splitlines()[-1])[0] == [], "a file of torch was changed"
    lw.call(python, "-m", "pip", "install", "--no-deps", "--force-reinstall", made.patched)
    assert lw.call(python, "-c", STATE) == "140 not loaded: this torch is a patched wheel and has its overlay inside\n"
    lw.call(python, "-m", "pip", "uninstall", "-y", "torch", PACKAGE)
    assert list(python.parent.parent.rglob("*multiworld*")) == []
