"""Sources of a PyTorch in miniature: the same libraries, folders and traps as the real one, in a few lines each.

`Secret` is hidden, as AutoNcclGroup and FlightRecorder are; `Recorder.cpp` registers a handler when it is loaded, and a
second registration of one name throws; `User.cpp` stands for the stock code that must be bound to the overlay.
"""

from __future__ import annotations

HEADERS = {
    "torch/csrc/Export.h": """
#pragma once
#define TORCH_API __attribute__((visibility("default")))
""",
    "torch/csrc/cuda/nccl.h": """
#pragma once
#include <torch/csrc/Export.h>
namespace torch::cuda::nccl {
enum class Result { Success = 0, NumResults = 1 };
TORCH_API int answer();
TORCH_API int version();
}
""",
    "torch/csrc/cuda/Secret.h": """
#pragma once
namespace torch::cuda {
struct Secret { static int value(); };
}
""",
    "torch/csrc/cuda/Aid.h": """
#pragma once
#include <torch/csrc/cuda/nccl.h>
""",
    "torch/csrc/distributed/c10d/control_plane/Handlers.hpp": """
#pragma once
#include <functional>
#include <string>
#include <vector>
#include <torch/csrc/Export.h>
namespace c10d::control_plane {
using HandlerFunc = std::function<int(int)>;
TORCH_API void registerHandler(const std::string& name, HandlerFunc f);
TORCH_API std::vector<std::string> getHandlerNames();
TORCH_API int call(const std::string& name, int x);
}
""",
}

#: Units of libtorch_cuda.so.
CUDA = {
    "torch/csrc/cuda/nccl.cpp": """
#include <torch/csrc/cuda/nccl.h>
#include <torch/csrc/cuda/Secret.h>
extern "C" int ncclGetVersion(int*);
extern "C" int cudaGetDevice(int*);
namespace torch::cuda::nccl {
int answer() {
  return 1 + Secret::value();
}
int version() {
  int v = 0, d = 0;
  return ncclGetVersion(&v) + cudaGetDevice(&d) + v + d;
}
}
""",
    "torch/csrc/cuda/Secret.cpp": """
#include <torch/csrc/cuda/Secret.h>
namespace torch::cuda {
int Secret::value() {
  return 40;
}
}
""",
    "torch/csrc/cuda/User.cpp": """
#include <torch/csrc/cuda/Aid.h>
extern "C" TORCH_API int use_answer() { return torch::cuda::nccl::answer(); }
extern "C" TORCH_API int use_version() { return torch::cuda::nccl::version(); }
""",
    "torch/csrc/distributed/c10d/Recorder.cpp": """
#include <torch/csrc/distributed/c10d/control_plane/Handlers.hpp>
namespace c10d {
TORCH_API int dump(int x) { return x + 1; }
struct AtLoad {
  AtLoad() { control_plane::registerHandler("dump", [](int x) { return dump(x); }); }
};
static AtLoad at_load;
}
""",
}

CPU = {
    "torch/csrc/distributed/c10d/control_plane/Handlers.cpp": """
#include <torch/csrc/distributed/c10d/control_plane/Handlers.hpp>
#include <map>
#include <stdexcept>
namespace c10d::control_plane {
static std::map<std::string, HandlerFunc>& all() {
  static std::map<std::string, HandlerFunc> handlers;
  return handlers;
}
void registerHandler(const std::string& name, HandlerFunc f) {
  if (!all().emplace(name, f).second) throw std::runtime_error("Handler " + name + " already registered");
}
std::vector<std::string> getHandlerNames() {
  std::vector<std::string> names;
  for (auto& item : all()) names.push_back(item.first);
  return names;
}
int call(const std::string& name, int x) { return all().at(name)(x); }
}
extern "C" int count_threads();
extern "C" TORCH_API int use_threads() { return count_threads(); }
extern "C" TORCH_API int handler_count() { return c10d::control_plane::getHandlerNames().size(); }
extern "C" TORCH_API int handler_call(const char* name, int x) { return c10d::control_plane::call(name, x); }
""",
    "torch/csrc/Parallel.cpp": """
#include <torch/csrc/Export.h>
extern "C" TORCH_API int count_threads() {
  int count = 0;
#pragma omp parallel reduction(+ : count)
  count += 1;
  return count;
}
""",
}

C10 = {"c10/core.cpp": '#include <torch/csrc/Export.h>\nextern "C" TORCH_API int c10_core() { return 10; }\n'}
C10_CUDA = {
    "c10/cuda/device.cpp": """
#include <torch/csrc/Export.h>
extern "C" int cudaGetDevice(int*);
extern "C" TORCH_API int c10_device() { int d = 0; return cudaGetDevice(&d); }
"""
}
PYTHON = {
    "torch/csrc/Module.cpp": """
#include <torch/csrc/Export.h>
extern "C" int use_answer();
extern "C" TORCH_API int python_answer() { return use_answer(); }
""",
    "torch/csrc/Binding.cpp": """
#include <torch/csrc/Export.h>
extern "C" int python_answer();
extern "C" TORCH_API int ask_python() { return python_answer(); }
""",
}

#: The file that names the library of each unit.
LISTS = {
    "build_variables.bzl": f"""
libtorch_cuda_sources = {list(CUDA)}
libtorch_sources = {list(CPU)}
libtorch_python_sources = {list(PYTHON)}
"""
}

#: Not part of the release's sources: what the official build links against.
NCCL = "int ncclGetVersion(int* v) { *v = 7; return 0; }\n"
CUDART = "int cudaGetDevice(int* d) { *d = 3; return 0; }\n"
CUDART_MAP = "libcudart.so.12 { global: cudaGetDevice; local: *; };\n"

#: The extension module, by the stable parts of CPython's ABI, so that no Python headers are needed.
EXTENSION = """
typedef struct { long refcnt; void* type; void* init; long index; void* copy;
                 const char* name; const char* doc; long size; void *m1, *m2, *m3, *m4, *m5; } Def;
extern void* PyModule_Create2(Def*, int);
extern int python_answer(void);
static Def def = {1, 0, 0, 0, 0, "torch._C", "the extension", -1, 0, 0, 0, 0, 0};
__attribute__((visibility("default"))) void* PyInit__C(void) {
  (void)python_answer();
  return PyModule_Create2(&def, 1013);
}
"""

INIT = """
import ctypes, os
from torch import _C
from torch.version import __version__
_lib = os.path.join(os.path.dirname(__file__), "lib")
_cuda, _cpu = (ctypes.CDLL(os.path.join(_lib, name)) for name in ("libtorch_cuda.so", "libtorch_cpu.so"))
ask_python = ctypes.CDLL(os.path.join(_lib, "libtorch_python.so")).ask_python
answer, version, handlers = _cuda.use_answer, _cuda.use_version, _cpu.handler_count
count_threads = _cpu.use_threads
def call(name, x):
    return _cpu.handler_call(name.encode(), x)
"""
