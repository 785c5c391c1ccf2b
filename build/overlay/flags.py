"""The compile line of a unit: flags that decide code and layout, and flags with paths of this machine."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from build.overlay.model import PYTHON, Inputs
from build.overlay.owners import macros_of
from build.overlay.symbols import needed
from build.releases import Release

#: Flags with which every release of PyTorch compiles libtorch_cuda, as far as they decide code and symbols.
COMMON = (
    "-O2",
    "-fPIC",
    "-DNDEBUG",  # CMAKE_BUILD_TYPE=Release; debug-only checks and members of c10 depend on it
    "-fvisibility=hidden",  # CMakeLists.txt: only what is marked *_API is exported; export the same
    "-fvisibility-inlines-hidden",  # likewise
    "-fno-math-errno",  # CMakeLists.txt
    "-fno-trapping-math",  # CMakeLists.txt
    "-w",  # torch's headers warn on newer compilers; errors still stop the build
    "-ffunction-sections",  # relocations then tell what reaches what: build.overlay.relocations
    "-fdata-sections",  # likewise
    "-frandom-seed=multiworld",  # same bytes for same input: names of internal symbols
)

#: Folders of the tree below which units include headers, beside the tree itself.
ROOTS = ("aten/src", "torch/csrc/api/include")

#: Macros of other systems and devices than those of the official CUDA wheels for Linux.
NEVER = frozenset(
    {"USE_ROCM", "USE_XPU", "USE_MPS", "USE_VULKAN", "USE_METAL", "__HIP_PLATFORM_AMD__", "BUILD_LITE_INTERPRETER"}
    | {"USE_C10D_MPI", "USE_C10D_UCC", "USE_UCC", "USE_C10D_XCCL", "WIN32_LEAN_AND_MEAN", "NOMINMAX", "ROCM_VERSION"}
    | {"HAVE_VSX_CPU_DEFINITION", "HAVE_ZVECTOR_CPU_DEFINITION", "HAVE_SVE_CPU_DEFINITION"}
    | {"HAVE_SVE256_CPU_DEFINITION"}
)


#: Macros that decide no code of these wheels: which headers a header includes, and what is exported on Windows.
_HARMLESS = frozenset(
    {"AT_PER_OPERATOR_HEADERS", "TEMPLATE_SELECTIVE_BUILD", "TORCH_HIP_VERSION"}
    | {"CAFFE2_BUILD_MAIN_LIB", "TORCH_HIP_BUILD_MAIN_LIB", "TORCH_XPU_BUILD_MAIN_LIB"}
)


def code_flags(release: Release, unit: str = "") -> tuple[str, ...]:
    """Return the flags that decide the code of one unit, or of those without flags of their own."""
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(release.wheel.cxx11_abi)}"
    defines = (f"-D{define.macro}" for define in release.defines if not define.units or unit in define.units)
    return (f"-std=c++{release.cxx_standard}", *COMMON, abi, *defines)


def recorded_flags(release: Release) -> tuple[str, ...]:
    """Return the flags that decide the code as a wheel's record names them: of every unit, then of single ones."""
    own = (f"{unit}: -D{define.macro}" for define in release.defines for unit in define.units)
    return (*code_flags(release), *own)


def said_flags(defines: Iterable[str]) -> tuple[str, ...]:
    """Return what the user says of the wheel's macros as flags, `-DNAME=VALUE` and `-UNAME`."""
    return tuple(f"-U{item[:-2]}" if item.endswith("=0") else f"-D{item}" for item in defines)


def said_defines(flags: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{flag[2:]}=0" if flag.startswith("-U") else flag[2:] for flag in flags)


def unit_flags(inputs: Inputs, unit: str) -> tuple[str, ...]:
    """Return the flags of one unit: those of its library, without the macros that only libtorch_cuda has."""
    flags = code_flags(inputs.release, unit)
    library = inputs.owners.of(unit)
    if library == PYTHON:
        # The wheels export what is not marked, too: initJITBindings, python_functions. The macro: torch/CMakeLists.txt.
        flags = (*(flag for flag in flags if flag != "-fvisibility=hidden"), "-DTHP_BUILD_MAIN_LIB")
    elif "cuda" not in library:
        flags = tuple(flag for flag in flags if flag.removeprefix("-D") not in inputs.owners.cuda_only)
    if library.startswith(("libtorch_cpu", "libtorch_cuda")) and (inputs.include / "ATen" / "ops").is_dir():
        flags = (*flags, "-DAT_PER_OPERATOR_HEADERS")  # cmake/Codegen.cmake; the headers say what is exported
    if library and any(name.startswith("libgomp") for name in needed(inputs.lib / library)):
        flags = (*flags, "-fopenmp")  # caffe2/CMakeLists.txt: caffe2::openmp; without it at::parallel_for is a loop
    return (*flags, "-DFMT_HEADER_ONLY=1", *said_flags(inputs.defines))  # caffe2/CMakeLists.txt: fmt::fmt-header-only


def undecided(inputs: Inputs, unit: str, files: Iterable[Path]) -> tuple[str, ...]:
    """Return the macros that files of a unit test, that build files set under conditions, and that no flag decides.

    Without them the overlay might lack what the wheel has: units with TORCH_USE_LIBUV have no libuv without it.
    """
    said = {item.partition("=")[0] for item in inputs.defines}
    known = {flag.removeprefix("-D").partition("=")[0] for flag in code_flags(inputs.release, unit)}
    tested = frozenset[str]().union(*map(macros_of, files)) & inputs.owners.conditional
    return tuple(sorted(tested - said - known - inputs.owners.cuda_only - NEVER - _HARMLESS))


def path_flags(inputs: Inputs, overrides: Path) -> tuple[str, ...]:
    """Return the include path and the prefix maps.

    Order: the headers that the patches change (in `overrides`), then the wheel's (stock was compiled with them), then
    CUDA's, and last the tree, which has the few headers that the wheel lacks.
    """
    include = inputs.include
    dirs = [f"-I{overrides / part}" for part in ("", *ROOTS)]
    dirs += [f"-I{include}", f"-I{include}/torch/csrc/api/include"]
    dirs += [f"-isystem{path}" for path in inputs.headers]
    dirs += [f"-idirafter{inputs.tree}", f"-idirafter{inputs.tree}/aten/src"]
    # Error messages quote __FILE__; keep this machine's paths out of them and the bytes the same everywhere.
    maps = [f"{overrides}=..", f"{inputs.tree}=..", f"{include}=torch/include"]
    maps += [f"{path}=headers" for path in inputs.headers]
    return (*dirs, *(f"-ffile-prefix-map={item}" for item in maps))
