"""The overlay wheel loads into the build it was made for, and into no other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.wheel.conftest import Subject

PACKAGE = "multiworld_torch_overlay"
_STATE = """
import json, sys, warnings
if sys.argv[1:]:
    sys.path.insert(0, sys.argv[1])
import multiworld_torch_overlay as overlay
overlay.install()
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    import torch
x = (torch.ones(3) * 2).sum().item()
print(json.dumps({"state": overlay.state(), "file": overlay.__file__, "sum": x, "said": [str(w.message) for w in seen],
                  "mapped": "libtorch_mw.so" in open("/proc/self/maps").read()}))
"""


@pytest.fixture(autouse=True)
def _only_with_the_overlay_wheel(subject: Subject) -> None:
    if subject.form != "overlay":
        pytest.skip("about the overlay wheel")


def _state(subject: Subject, *arguments: str, env: dict[str, str] | None = None) -> dict[str, object]:
    found = subject.ask(_STATE, *arguments, env=env)
    assert isinstance(found, dict)
    assert found["sum"] == 6.0
    return found


def _package(subject: Subject) -> Path:
    where = subject.ask("import json, multiworld_torch_overlay as m; print(json.dumps(m.__file__))")
    return Path(str(where)).parent


def test_it_is_active_without_being_asked(subject: Subject) -> None:
    found = _state(subject)
    assert found["state"] == "loaded"
    assert found["mapped"]
    assert found["said"] == []


def test_it_can_be_switched_off(subject: Subject) -> None:
    found = _state(subject, env={"MULTIWORLD_TORCH_OVERLAY": "0"})
    assert found["state"] == "not loaded: switched off by MULTIWORLD_TORCH_OVERLAY=0"
    assert not found["mapped"]


def test_another_build_is_left_alone_with_a_warning(subject: Subject, tmp_path: Path) -> None:
    copy = tmp_path / PACKAGE
    shutil.copytree(_package(subject), copy)
    facts = json.loads((copy / "overlay.json").read_text(encoding="utf-8"))
    other = "0" * 40
    (ours,) = {subject.record.provenance.libtorch_cuda_build_ids[subject.record.python]} & set(facts["build_ids"])
    (copy / "overlay.json").write_text(json.dumps(facts | {"build_ids": [other], "made_for": "9.9.9+cu999"}))
    # The environment's own copy comes first through its .pth file: this run must import the changed one.
    code = f"import sys; [sys.modules.pop(m) for m in list(sys.modules) if m.startswith('{PACKAGE}')]\n"
    code += f"sys.meta_path[:] = [f for f in sys.meta_path if type(f).__module__ != '{PACKAGE}']\n"
    done = subject.ask(code + _STATE, str(tmp_path))
    assert isinstance(done, dict)
    assert str(done["file"]).startswith(str(tmp_path))
    assert done["sum"] == 6.0
    assert not done["mapped"]
    (said,) = done["said"]
    assert "9.9.9+cu999" in said
    assert ours in str(done["state"])
    assert other in str(done["state"])


def test_no_file_of_torch_was_changed(subject: Subject) -> None:
    """Every file of the official wheel still has the digest that its RECORD gives."""
    code = """
import base64, hashlib, json
from importlib.metadata import distribution
bad = []
for item in distribution("torch").files:
    if item.hash and item.suffix in (".so", ".py", ".h"):
        have = base64.urlsafe_b64encode(hashlib.sha256(item.locate().read_bytes()).digest()).rstrip(b"=").decode()
        bad += [str(item)] if have != item.hash.value else []
print(json.dumps(bad))
"""
    assert subject.ask(code) == []
