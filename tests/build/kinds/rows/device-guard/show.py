"""Ask the device guard of the device type Lazy for its devices, as code that is compiled against the headers does."""

import ctypes
import os
import subprocess
import tempfile
from pathlib import Path

import torch

CODE = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
extern "C" int ask() { return c10::impl::getDeviceGuardImpl(c10::DeviceType::Lazy)->deviceCount(); }
"""
top = Path(torch.__file__).parent
with tempfile.TemporaryDirectory() as scratch:
    unit, library = Path(scratch, "unit.cpp"), Path(scratch, "unit.so")
    unit.write_text(CODE)
    flags = ["-std=c++17", "-shared", "-fPIC", "-w", "-D_GLIBCXX_USE_CXX11_ABI=0", f"-I{top}/include", f"-L{top}/lib"]
    link = ["-Wl,--unresolved-symbols=ignore-in-shared-libs", "-ltorch_cpu", "-lc10"]
    subprocess.run([os.environ.get("CXX", "g++"), *flags, unit, *link, "-o", library], check=True, timeout=300)
    print(ctypes.CDLL(str(library)).ask())
