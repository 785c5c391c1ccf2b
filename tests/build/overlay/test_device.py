"""Device code of an overlay, on a small CUDA library, with nvcc from the package index and without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from build.errors import CompileError, EnvironmentUnfitError
from build.full import index_toolkit
from build.overlay import device, toolchain
from build.overlay.symbols import exported
from tests.build.overlay.little import shell

_WANTED = ("sm_80", "sm_90", "compute_90")
_KERNEL = """
__global__ void scale(float* data) { data[threadIdx.x] *= %s; }
extern "C" __attribute__((visibility("default"))) void* kernel_address() { return (void*)scale; }
extern "C" __attribute__((visibility("default"))) int launch() {
  scale<<<1, 1>>>(nullptr);
  return cudaGetLastError();
}
"""
_USER = """
__global__ void other(float* data) { data[0] = 1; }
__global__ void scale(float* data);
extern "C" __attribute__((visibility("default"))) void* address_seen() { return (void*)scale; }
extern "C" __attribute__((visibility("default"))) int launch_other() {
  other<<<1, 1>>>(nullptr);
  return cudaGetLastError();
}
"""
#: Loads the overlay, then the library, as `torch._C` would; says where the kernel's host function is.
_PROGRAM = """
import ctypes, json, sys
class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p),
                ("at", ctypes.c_void_p)]
runtime = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
libraries = [ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in sys.argv[2:]]
stock = libraries[-1]
stock.address_seen.restype = ctypes.c_void_p
info = Info()
ctypes.CDLL(None).dladdr(ctypes.c_void_p(stock.address_seen()), ctypes.byref(info))
print(json.dumps({"file": info.file.decode(), "name": info.name.decode(),
                  "launch": [library.launch() for library in libraries], "other": stock.launch_other()}))
"""


def test_cuda_12_is_refused_with_the_reason() -> None:
    device.check_cuda("13.0")
    with pytest.raises(EnvironmentUnfitError, match=r"CUDA 12\.4 cannot be compiled") as caught:
        device.check_cuda("12.4")
    assert "no nvcc before CUDA 13" in caught.value.cause


@pytest.fixture(scope="module")
def home() -> Path:
    if "MULTIWORLD_DEVICE_CODE" not in os.environ:
        pytest.skip("installs nvcc from the package index: set MULTIWORLD_DEVICE_CODE=1")
    try:
        return index_toolkit.install("13.0")
    except EnvironmentUnfitError as error:
        pytest.skip(f"needs nvcc from the package index: {error.cause}")


def compiled(home: Path, folder: Path, name: str, text: str, *more: Path, wanted: tuple[str, ...] = _WANTED) -> Path:
    """Compile one unit, and link it with objects into a library; return the library."""
    tools = toolchain.find(9)
    source, target = folder / f"{name}.cu", folder / f"{name}.o"
    source.write_text(text)
    device.compile_unit(home / "bin" / "nvcc", tools, source, target, wanted, [device.VISIBLE])
    library = folder / f"lib{name}.so"
    shell(tools.cxx, "-shared", target, *more, f"-L{home / 'lib'}", "-lcudart", "-o", library)
    return library


def seen(home: Path, *libraries: Path) -> dict[str, object]:
    runtime = next((home / "lib").glob("libcudart.so.*"))
    done = subprocess.run([sys.executable, "-c", _PROGRAM, runtime, *libraries], capture_output=True, text=True,
                          timeout=120, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_one_unit_of_a_library_is_replaced(home: Path, tmp_path: Path) -> None:
    compiled(home, tmp_path, "user", _USER)
    stock = compiled(home, tmp_path, "stock", _KERNEL % "2", tmp_path / "user.o")
    assert device.architectures(stock) == set(_WANTED)
    overlay = compiled(home, tmp_path, "overlay", _KERNEL % "3", wanted=tuple(device.architectures(stock)))
    assert device.architectures(overlay) == set(_WANTED)
    (kernel,) = (name for name in exported(overlay) if name.startswith("_Z5scale"))
    alone = seen(home, stock)
    assert (alone["file"], alone["name"]) == (str(stock), kernel)
    both = seen(home, overlay, stock)
    assert (both["file"], both["name"]) == (str(overlay), kernel)
    # Without a GPU: a kernel that is not registered is an invalid device function (98), one that is finds no driver.
    assert {*both["launch"], both["other"]}.isdisjoint({0, 98})  # type: ignore[misc]
    with pytest.raises(CompileError, match=r"does not compile"):
        compiled(home, tmp_path, "broken", "__global__ void f() { no_such(); }")
    assert device.architectures(Path(toolchain.find(9).cxx).resolve()) == frozenset()
