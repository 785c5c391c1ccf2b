"""The patched wheel: the official one with the overlay first in line, installable, and nothing else changed."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import uv
from packaging.utils import parse_wheel_filename

from build.errors import OverlayCheckError, WheelError
from build.overlay.build import build_overlay
from build.overlay.symbols import needed
from build.wheels import patched
from build.wheels.archive import check_archive
from build.wheels.platforms import newer
from tests.build.overlay import little as lt
from tests.build.overlay.little import Little
from tests.build.wheels import little_wheel as lw
from tests.build.wheels.conftest import Made
from tests.build.wheels.test_archive import compressed, streamed

NEW_INFO = f"torch-{lt.VERSION}+cu124.mw1.dist-info"
#: Every file of the distribution has the digest that its RECORD gives.
VERIFY = """
import base64, hashlib, json, torch
from importlib.metadata import distribution
bad = []
for item in distribution("torch").files:
    if item.hash:
        have = base64.urlsafe_b64encode(hashlib.sha256(item.locate().read_bytes()).digest()).rstrip(b"=").decode()
        bad += [str(item)] if have != item.hash.value else []
versions = [torch.__version__, distribution("torch").version]
print(json.dumps([bad, *versions, torch.answer(), torch.version()]))
"""


def test_the_name_says_what_it_is(made: Made) -> None:
    name, version, _, tags = parse_wheel_filename(made.patched.name)
    assert (name, str(version)) == ("torch", "9.9.0+cu124.mw1")
    (tag,) = tags
    assert (tag.interpreter, tag.abi, tag.platform) == (lw.TAG, lw.TAG, newer("manylinux1_x86_64", made.tag))


def test_only_what_must_change_changes(made: Made, little: Little) -> None:
    before, after = lw.members(little), streamed(made.patched)
    renamed = {name.replace(lw.INFO, NEW_INFO): data for name, data in before.items()}
    extension = next(name for name in before if name.startswith("torch/_C."))
    changed = {name for name in renamed if after[name] != renamed[name]}
    assert changed == {extension, "torch/version.py", f"{NEW_INFO}/METADATA", f"{NEW_INFO}/WHEEL"}
    assert set(after) - set(renamed) == {
        "torch/lib/libtorch_mw.so",
        *(f"{NEW_INFO}/{name}" for name in (*lw.DOCUMENTS, "RECORD")),
    }
    same = next(name for name in before if name.endswith("libtorch_cuda.so"))
    assert compressed(made.patched, same) == compressed(made.official, same)
    assert check_archive(made.patched) == len(after)


def test_what_it_says_of_itself(made: Made) -> None:
    found = {name: data.decode() for name, data in streamed(made.patched).items() if NEW_INFO in name}
    metadata = found[f"{NEW_INFO}/METADATA"]
    assert metadata.startswith("Metadata-Version: 2.1\nName: torch\nVersion: 9.9.0+cu124.mw1\n")
    assert metadata.endswith("\n\nVersion: not this\n"), "only the field, not the description"
    assert f"Tag: {lw.TAG}-{lw.TAG}-{made.patched.stem.split('-')[-1]}\n" in found[f"{NEW_INFO}/WHEEL"]
    with zipfile.ZipFile(made.patched) as archive:
        assert archive.getinfo("torch/lib/libtorch_mw.so").external_attr >> 16 == 0o100755
        assert archive.read("torch/version.py").decode().startswith("__version__ = '9.9.0+cu124.mw1'")


def test_the_overlay_is_the_first_that_the_extension_asks_for(made: Made, tmp_path: Path) -> None:
    with zipfile.ZipFile(made.patched) as archive:
        name = next(name for name in archive.namelist() if name.startswith("torch/_C."))
        extension = Path(archive.extract(name, tmp_path))
    assert needed(extension)[:2] == ("libtorch_mw.so", "libtorch_python.so")


def test_two_builds_give_the_same_bytes(made: Made, tmp_path: Path) -> None:
    again = patched.assemble(made.release, made.official, made.overlay, made.tag, lw.DOCUMENTS, tmp_path)
    assert again.read_bytes() == made.patched.read_bytes()
    assert list(tmp_path.iterdir()) == [again]


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_it_installs_and_runs_the_overlay(installer: str, made: Made, python: Path) -> None:
    if installer == "pip":
        lw.call(python, "-m", "pip", "install", "--no-deps", "--force-reinstall", made.patched)
    else:
        lw.call(uv.find_uv_bin(), "pip", "install", "--reinstall", "--no-deps", "--python", python, made.patched)
    bad, shown, metadata, answer, version = json.loads(lw.call(python, "-c", VERIFY).splitlines()[-1])
    assert bad == []
    assert shown == metadata == "9.9.0+cu124.mw1"
    assert (answer, version) == (140, 10)
    lw.call(python, "-m", "pip", "uninstall", "-y", "torch")
    assert list(python.parent.parent.rglob("libtorch_mw.so")) == [], "RECORD does not list every file"


def test_stock_installs_and_runs_stock(made: Made, python: Path) -> None:
    """The other side of the test above: what it measures is there to be missed."""
    lw.call(python, "-m", "pip", "install", "--no-deps", "--force-reinstall", made.official)
    assert json.loads(lw.call(python, "-c", VERIFY).splitlines()[-1]) == [[], "9.9.0+cu124", "9.9.0", 41, 10]
    lw.call(python, "-m", "pip", "uninstall", "-y", "torch")


def _wheel(little: Little, folder: Path, drop: str = "", **dist_info: str) -> Path:
    content = lw.members(little, {**lw.DIST_INFO, **dist_info})
    kept = {name: data for name, data in content.items() if not drop or drop not in name}
    return lw.write_wheel(folder / lw.NAME, kept)


@pytest.mark.parametrize(
    ("drop", "dist_info", "message"),
    [
        ("torch/_C.", {}, "not a wheel of torch"),
        ("METADATA", {}, "not a wheel of torch"),
        ("", {"METADATA": "Metadata-Version: 2.1\nSummary: x\nName: torch\n"}, "METADATA does not look as expected"),
        ("", {"WHEEL": "Wheel-Version: 1.0\n"}, "WHEEL does not look as expected"),
    ],
)
def test_another_layout_is_refused_and_nothing_is_left(
    drop: str, dist_info: dict[str, str], message: str, made: Made, little: Little, tmp_path: Path
) -> None:
    odd = _wheel(little, tmp_path, drop, **dist_info)
    with pytest.raises(WheelError, match=message):
        patched.assemble(made.release, odd, made.overlay, made.tag, {}, tmp_path / "dist")
    assert list((tmp_path / "dist").iterdir()) == []


@pytest.mark.usefixtures("own_cache")
def test_an_overlay_into_an_already_patched_wheel_is_refused(made: Made, little: Little, tmp_path: Path) -> None:
    """Neither is one compiled against it, nor put into it; `test_runtime` has the one that is installed beside it."""
    with zipfile.ZipFile(made.patched) as archive:
        archive.extractall(tmp_path / "unpacked")
    given = lt.inputs(little, tmp_path / "tree", lt.edited(lt.NCCL_CPP, "return 1 +", "return 300 +"))
    with pytest.raises(OverlayCheckError, match=r"the wheel has no overlay yet: libtorch_mw\.so"):
        build_overlay(replace(given, wheel=tmp_path / "unpacked"), tmp_path / "out")
    assert not (tmp_path / "cache" / "objects").exists(), "it was compiled first"
    again = msgspec.structs.replace(made.release, label="fix0")
    with pytest.raises(WheelError, match=r"has an overlay already: torch/lib/libtorch_mw\.so"):
        patched.assemble(again, made.patched, made.overlay, made.tag, {}, tmp_path / "dist")
    assert list((tmp_path / "dist").iterdir()) == []


def test_a_record_with_holes_is_refused(made: Made, little: Little, tmp_path: Path) -> None:
    odd = lw.write_wheel(tmp_path / lw.NAME, lw.members(little), record=f"{lw.INFO}/RECORD,,\n")
    with pytest.raises(WheelError, match="RECORD does not list"):
        patched.assemble(made.release, odd, made.overlay, made.tag, {}, tmp_path / "dist")
    assert list((tmp_path / "dist").iterdir()) == []
