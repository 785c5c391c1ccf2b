"""Ask the stubs that are registered for CUDA whether they are enabled."""

import ctypes
import os
import subprocess
import tempfile
from pathlib import Path

import torch

CODE = """
#include <torch/csrc/profiler/stubs/base.h>
extern "C" int ask() { return torch::profiler::impl::cudaStubs()->enabled(); }
"""
top = Path(torch.__file__).parent
with tempfile.TemporaryDirectory() as scratch:
    unit, library = Path(scratch, "unit.cpp"), Path(scratch, "unit.so")
    unit.write_text(CODE)
    flags = ["-std=c++17", "-shared", "-fPIC", "-w", "-D_GLIBCXX_USE_CXX11_ABI=0", f"-I{top}/include", f"-L{top}/lib"]
    link = ["-Wl,--unresolved-symbols=ignore-in-shared-libs", "-ltorch_cpu", "-lc10"]
    subprocess.run([os.environ.get("CXX", "g++"), *flags, unit, *link, "-o", library], check=True, timeout=300)
    print(ctypes.CDLL(str(library)).ask())
