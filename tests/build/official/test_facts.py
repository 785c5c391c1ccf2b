from __future__ import annotations

import io
import shutil
import subprocess
from pathlib import Path

import pytest

from build.errors import SourceError, WheelError
from build.official.facts import WheelFacts, read_build_id, read_facts, versions
from build.releases import OfficialWheel

from .server import Index, make_wheel

COMMIT = "2236df1770800ffea5697b11b0bb0d910b2e59e1"
VERSION_PY = f"""\
from typing import Optional
__version__ = '2.6.0+cu124'
debug = False
cuda: Optional[str] = '12.4'
git_version = '{COMMIT}'
"""
METADATA = """\
Name: torch
Version: 2.6.0
Requires-Dist: filelock
Requires-Dist: nvidia-nccl-cu12 (==2.21.5) ; platform_system == "Linux" and platform_machine == "x86_64"
Requires-Dist: nvidia-cublas-cu12==12.4.5.8; platform_system == "Linux"
Requires-Dist: winthing==1.0; platform_system == "Windows"
Requires-Dist: optree==0.13; extra == "optree"
Requires-Dist: sympy>=1.13
"""
OLD, NEW = b"\0_ZN3c105ErrorC1ENS_14SourceLocationESs\0", b"\0_ZN3c105ErrorC2ENSt7__cxx1112basic_stringE\0"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A real shared library with a build id, which patchelf-like padding puts far behind."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("needs gcc")
    folder = tmp_path_factory.mktemp("library")
    (folder / "x.c").write_text("int answer(void) { return 42; }\n")
    command: list[str | Path] = [
        gcc,
        "-shared",
        "-fPIC",
        "-Wl,--build-id=0x" + "ab" * 20,
        "-o",
        folder / "x.so",
        folder / "x.c",
    ]
    subprocess.run(command, check=True, timeout=60)
    return (folder / "x.so").read_bytes()


def members(library: bytes, symbols: bytes = OLD) -> dict[str, bytes]:
    return {
        "torch-2.6.0.dist-info/METADATA": METADATA.encode(),
        "torch/version.py": VERSION_PY.encode(),
        "torch/lib/libc10.so": symbols,
        "torch/lib/libtorch_cuda.so": library,
        "torch/share/cmake/Torch/TorchConfig.cmake": b"set_property(TARGET torch PROPERTY CXX_STANDARD 17)\n",
    }


def test_facts_of_every_wheel_of_a_release(server: Index, tmp_path: Path, library: bytes) -> None:
    data = make_wheel(tmp_path / "x.whl", members(library))
    digests = {
        python: server.add(
            f"torch-2.6.0-cp{python.replace('.', '')}-cp{python.replace('.', '')}-manylinux1_x86_64.whl", data
        )
        for python in ("3.9", "3.10")
    }
    server.add("torch-2.6.0-cp313-cp313t-manylinux1_x86_64.whl", b"free-threaded: another ABI")
    server.add("torch-2.6.0-cp310-none-macosx_11_0_arm64.whl", b"another platform")
    assert versions() == ("2.6.0",)
    wheel = OfficialWheel(
        version="2.6.0",
        local="cu124",
        cuda="12.4",
        cxx11_abi=False,
        nccl="2.21.5",
        pythons=("3.9", "3.10"),
        sha256=digests,
        libtorch_cuda_build_ids={"3.9": "ab" * 20, "3.10": "ab" * 20},
    )
    assert read_facts("2.6.0") == WheelFacts(
        wheel=wheel,
        commit=COMMIT,
        cxx_standard=17,
        requires={"nvidia-nccl-cu12": "2.21.5", "nvidia-cublas-cu12": "12.4.5.8"},
    )


def test_new_abi_and_no_build_ids(server: Index, tmp_path: Path) -> None:
    server.add("torch-2.6.0-cp311-cp311-manylinux1_x86_64.whl", make_wheel(tmp_path / "x.whl", members(b"", NEW)))
    wheel = read_facts("2.6.0", build_ids=False).wheel
    assert wheel.cxx11_abi
    assert wheel.libtorch_cuda_build_ids == {}


def test_wheel_that_does_not_tell_its_abi(server: Index, tmp_path: Path) -> None:
    server.add("torch-2.6.0-cp311-cp311-manylinux1_x86_64.whl", make_wheel(tmp_path / "x.whl", members(b"", b"")))
    with pytest.raises(WheelError, match="its ABI is unknown"):
        read_facts("2.6.0", build_ids=False)


def test_unknown_release_lists_what_there_is(server: Index) -> None:
    server.add("torch-2.6.0-cp311-cp311-manylinux1_x86_64.whl", b"")
    with pytest.raises(SourceError) as caught:
        read_facts("9.9.9")
    assert "2.6.0" in caught.value.cause


def test_build_id_agrees_with_readelf(library: bytes, tmp_path: Path) -> None:
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("needs readelf")
    (tmp_path / "x.so").write_bytes(library)
    done = subprocess.run([readelf, "-n", tmp_path / "x.so"], check=True, capture_output=True, timeout=60)
    assert read_build_id(io.BytesIO(library)).encode() in done.stdout


def test_note_behind_the_code_is_found(library: bytes) -> None:
    """As patchelf leaves it: the segment's offset points to the end of the file."""
    note = bytes.fromhex("040000001400000003000000") + b"GNU\0" + b"\xcd" * 20
    moved = bytearray(library + bytes(3_000_000 - len(library)) + note)
    table = int.from_bytes(moved[32:40], "little")
    for index in range(int.from_bytes(moved[56:58], "little")):
        start = table + index * 56
        if int.from_bytes(moved[start : start + 4], "little") == 4:
            moved[start + 8 : start + 16] = (3_000_000).to_bytes(8, "little")
            moved[start + 32 : start + 40] = len(note).to_bytes(8, "little")
    assert read_build_id(io.BytesIO(bytes(moved))) == "cd" * 20


def test_library_without_a_build_id(library: bytes) -> None:
    stripped = library.replace(b"GNU\0" + b"\xab" * 20, b"XXX\0" + b"\xab" * 20)
    assert stripped != library
    with pytest.raises(WheelError, match="no GNU build id"):
        read_build_id(io.BytesIO(stripped))
