"""An NCCL library that is not what the bindings need, and a machine without CUDA."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.multiworld.device.ranks import ROOT, has_bindings, torch_python

needs_bindings = pytest.mark.skipif(
    not has_bindings() or shutil.which("cc") is None,
    reason="nccl4py is not installed beside MULTIWORLD_TORCH_PYTHON's torch, or there is no C compiler",
)

_LIBRARY = """
int ncclGetVersion(int *version) { *version = %d; return 0; }
const char *ncclGetErrorString(int result) { return "error"; }
int ncclGetUniqueId(char *id) { return 0; }
"""
# Torch needs more of the library than there is, but calls none of it here: its symbols are bound when they are called.
_CONNECT = """
import json, os, sys
sys.setdlopenflags(os.RTLD_LAZY)
from multiworld.backends import nccl
from multiworld.backends.device_members import Member
from multiworld.backends.setup_store import SetupStore
from multiworld.errors import BackendFailed

error = None
try:
    store = SetupStore(lambda key, value: None, 1.0)
    nccl.NcclDriver(store, Member("w", 0, 0, 2, "cuda:0")).connect(0)
except BackendFailed as failure:
    error = str(failure)
print(json.dumps([nccl.unavailable(), error]))
"""
_JOIN = """
import asyncio, json
from multiworld import BackendUnavailable, MultiWorld

async def main():
    async with MultiWorld() as mw:
        try:
            await mw.join("w", 0, 2, store="tcp://127.0.0.1:1", backend=BACKEND)
        except BackendUnavailable as error:
            return str(error)

print(json.dumps(asyncio.run(main())))
"""


def _run(program: str, **variables: str) -> list[str | None]:
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)])
    done = subprocess.run(
        [torch_python(), "-c", program],
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found: list[str | None] = json.loads(done.stdout)
    return found


def _library(folder: Path, version: int) -> str:
    """A library of NCCL that has three functions."""
    source, library = folder / "little.c", folder / "libnccl.so.2"
    source.write_text(_LIBRARY % version)
    command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", source, "-o", library]
    subprocess.run(command, check=True, timeout=60)
    return str(library)


@needs_bindings
def test_a_library_that_lacks_a_function(tmp_path: Path) -> None:
    missing, error = _run(_CONNECT, LD_PRELOAD=_library(tmp_path, 22105))
    assert missing is None
    assert error is not None
    for words in ("world 'w', rank 0", "NCCL 2.21.5 lacks", "ncclCommGetAsyncError", "backend='torch-nccl'"):
        assert words in error


@needs_bindings
def test_a_library_that_is_too_old(tmp_path: Path) -> None:
    missing, _ = _run(_CONNECT, LD_PRELOAD=_library(tmp_path, 21203))
    assert missing == "NCCL 2.12.3 is too old: non-blocking communicators came with 2.14.0"


@pytest.mark.parametrize("backend", ["nccl", "torch-nccl"])
def test_nccl_without_cuda(backend: str) -> None:
    error = _run(f"BACKEND = {backend!r}\n{_JOIN}", CUDA_VISIBLE_DEVICES="")
    assert error is not None
    for words in ("world 'w', rank 0", f"backend {backend!r} cannot be used here", "no CUDA device", "backend='gloo'"):
        assert words in error
