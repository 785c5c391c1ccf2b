"""Call the kernel that the stub has for CUDA with tensors on the CPU: a slice of one element launches nothing."""

import ctypes
import os
import subprocess
import tempfile
from pathlib import Path

import torch

CODE = """
#include <ATen/core/Tensor.h>
#include <ATen/native/TensorCompare.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
extern "C" long ask() {
  auto self = at::full({2, 1}, 5.0), values = at::zeros({2, 1});
  auto indices = at::zeros({2, 1}, at::kLong);
  auto kernel = reinterpret_cast<at::native::mode_fn*>(&at::native::mode_stub)[1];  // [0]: that of the CPU
  kernel(values, indices, self, 1, true);
  return indices.sum().item<int64_t>();
}
"""
top = Path(torch.__file__).parent
with tempfile.TemporaryDirectory() as scratch:
    unit, library = Path(scratch, "unit.cpp"), Path(scratch, "unit.so")
    unit.write_text(CODE)
    flags = ["-std=c++17", "-shared", "-fPIC", "-w", "-D_GLIBCXX_USE_CXX11_ABI=0", f"-I{top}/include", f"-L{top}/lib"]
    link = ["-Wl,--unresolved-symbols=ignore-in-shared-libs", "-ltorch_cpu", "-lc10"]
    subprocess.run([os.environ.get("CXX", "g++"), *flags, unit, *link, "-o", library], check=True, timeout=300)
    print(ctypes.CDLL(str(library)).ask())
