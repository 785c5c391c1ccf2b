"""Link the objects into the overlay, so that every undefined symbol resolves against the exact wheel.

NCCL, the CUDA runtime and OpenMP's are linked through import stubs, so that linking needs none of their 200 MB. A stub
exports exactly what the wheel's own libraries import from the real library, with the same symbol versions: the overlay
needs nothing that stock does not need. Static initialisers that register something by name are wrapped: the
overlay's copy must not register it a second time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from build.errors import CompileError, OverlayCheckError
from build.overlay.flags import code_flags, path_flags
from build.overlay.model import LIBRARIES, PYTHON, Inputs, Object
from build.overlay.runtime import Export, Runtime, exports, prepare, stub
from build.overlay.symbols import demangle, dynamic, names, needed, run_path, undefined
from build.overlay.toolchain import run_compiler
from build.paths import atomic_write
from build.releases import Release

_STEM = "libtorch_mw"
#: The libraries whose symbols the units use, in the order in which they must be searched at run time.
_NEEDED = ("libtorch_cuda.so", "libtorch_cpu.so", "libc10_cuda.so", "libc10.so")
#: Prefix of the functions of each library outside the wheel that host units call.
_PREFIXES = {"libnccl.so": ("nccl", "pnccl"), "libcudart.so": ("cuda",), "libgomp": ("GOMP_", "omp_")}
_IMPORTERS = ("libtorch_cuda.so", "libc10_cuda.so", "libtorch_cpu.so")
_SHIM = Path(__file__).with_name("native") / "register_once.cpp"
#: The registration that `native/register_once.cpp` makes safe.
_WRAPPED = "c10d::control_plane::registerHandler("
#: Registrations of PyTorch that take a name once per process, and that have no shim.
_OTHERS = (
    "torch::Library::_def(",
    "torch::Library::_impl(",
    "torch::Library::_fallback(",
    "torch::detail::class_base::class_base(",
    "torch::RegisterOperators::",
    "c10::RegisterOperators::",
    "c10::Dispatcher::registerDef",
    "c10::Dispatcher::registerImpl",
    "c10::Dispatcher::registerLibrary",
    "c10d::registerProcessGroup",
    "at::RegisterCUDAHooks",
)


def soname(release: Release) -> str:
    """Return the name of the library; that of a user's patches has the label, since a process may find two."""
    return f"{_STEM}_{release.label}.so" if release.label else f"{_STEM}.so"


def _registries(objects: Iterable[Object]) -> list[str]:
    """Return the registrations of `C10_REGISTER_CLASS` and its kin: each unit has the template's code in it."""
    every = {name for item in objects for name in names(item.path).defined}
    found = [name for name in every if name.startswith("_ZN3c108Registry") and "8RegisterE" in name]
    return sorted(demangle(found).values()) if found else []


def to_wrap(objects: Sequence[Object]) -> str:
    """Return the mangled name of the registration function to wrap, empty when no object calls it."""
    spelt = demangle(undefined(item.path for item in objects))
    unsafe = sorted(name for name in spelt.values() if name.startswith(_OTHERS)) + _registries(objects)
    if unsafe:
        raise OverlayCheckError(
            f"the overlay would register twice: {', '.join(unsafe)}",
            cause="a unit in the overlay registers a name when it is loaded, and stock has already registered it",
            remedy="write a shim for it as build/overlay/native/register_once.cpp does, or make a full build",
        )
    return next((symbol for symbol, name in spelt.items() if name.startswith(_WRAPPED)), "")


def _compile_shim(inputs: Inputs, symbol: str, folder: Path) -> Path:
    """Compile the shim for `symbol` and return its object file."""
    target = folder / "register_once.o"
    flags = [*code_flags(inputs.release), *path_flags(inputs, folder), f"-ffile-prefix-map={_SHIM.parent}=multiworld"]
    line: list[str | Path] = [inputs.toolchain.cxx, *flags, f"-DREGISTER_HANDLER={symbol}", "-c", _SHIM, "-o", target]
    done = run_compiler(line, timeout=600)
    if done.returncode:
        raise CompileError(
            "the registration shim does not compile against this release",
            cause=done.tail,
            remedy=f"adapt build/overlay/native/{_SHIM.name} to the release's headers, or make a full build",
        )
    return target


def _importers(inputs: Inputs) -> tuple[str, ...]:
    return (*_IMPORTERS, *([PYTHON] if inputs.per_python else []))


def _imports(inputs: Inputs, prefixes: tuple[str, ...]) -> list[Export]:
    """Return what the wheel's libraries import under `prefixes`, one of each name."""
    every = (item for name in _importers(inputs) for item in dynamic(inputs.lib / name, "U"))
    found = {item.name: item for item in every if item.name.startswith(prefixes)}
    return [Export(name, "FUNC", found[name].version) for name in sorted(found)]


def _bindings(inputs: Inputs, objects: Iterable[Path], folder: Path) -> Path:
    """Return libtorch_python to link against; for its own units a stub with its exports and those of the interpreter.

    No library needs the interpreter by name: it is in the process before torch. The stub has what the objects call of
    it; that it is there, its headers say, with which they were compiled.
    """
    real = inputs.lib / PYTHON
    if not inputs.per_python:
        return real
    found = {item.name: Export(item.name, item.kind, "") for item in exports(real)}
    called = (name for name in undefined(objects) if name.startswith(("Py", "_Py")))
    found |= {name: Export(name, "FUNC", "") for name in called}
    return stub(inputs.toolchain, PYTHON, [found[name] for name in sorted(found)], folder)


def _import_stubs(inputs: Inputs, folder: Path) -> list[Path]:
    """Make the stubs in `folder`, under the sonames that the wheel's libraries need."""
    sonames = {name for library in _importers(inputs) for name in needed(inputs.lib / library)}
    return [
        stub(inputs.toolchain, soname, _imports(inputs, prefixes), folder)
        for stem, prefixes in _PREFIXES.items()
        for soname in sorted(sonames)
        if soname.startswith(stem)
    ]


@dataclass(frozen=True, slots=True)
class _Against:
    """What the overlay is linked against beside the wheel's own libraries; `bindings` takes libtorch_python's place."""

    stubs: tuple[Path, ...]
    system: Runtime
    bindings: Path


def _against(inputs: Inputs, objects: Sequence[Path], folder: Path) -> _Against:
    stubs = _import_stubs(inputs, folder)
    system = prepare(inputs.toolchain, [inputs.lib / name for name in LIBRARIES], folder)
    return _Against(tuple(stubs), system, _bindings(inputs, objects, folder))


def _command(inputs: Inputs, objects: Sequence[Path], against: _Against, wrap: str, target: Path) -> list[str | Path]:
    # In either wheel the overlay is two folders below site-packages, as torch/lib is.
    rpath = "$ORIGIN/../../torch/lib:" + run_path(inputs.lib / "libtorch_cuda.so")
    libraries = [inputs.lib / name for name in _NEEDED]
    line: list[str | Path] = [inputs.toolchain.cxx, "-shared", "-fPIC", "-s", "-o", target, *objects]
    line += ["-Wl,-z,defs", "-Wl,-z,relro", "-Wl,--build-id=sha1", f"-Wl,-soname,{soname(inputs.release)}"]
    line += ["-Wl,--disable-new-dtags", f"-Wl,-rpath,{rpath}"]
    line += [f"-Wl,--wrap={wrap}"] if wrap else []
    line += [f"-Wl,-rpath-link,{inputs.lib}", "-Wl,--no-as-needed", *libraries, "-Wl,--as-needed", *against.stubs]
    line += against.system.arguments
    # Not for its symbols: as a dependency of the overlay, libtorch_python looks symbols up in the overlay's scope,
    # overlay first, and the process gets no global symbols.
    return [*line, "-Wl,--no-as-needed", against.bindings]


def link(inputs: Inputs, objects: Sequence[Object], target: Path) -> Path:
    """Link `objects` into `target`.

    Raises:
        CompileError: the linker fails, e.g. because the wheel's libraries lack a symbol.
        OverlayCheckError: a static initialiser would register a name a second time.
    """
    wrap = to_wrap(objects)
    with tempfile.TemporaryDirectory(prefix="link-") as scratch, atomic_write(target) as part:
        files = [item.path for item in objects]
        if wrap:
            files.append(_compile_shim(inputs, wrap, Path(scratch)))
        against = _against(inputs, files, Path(scratch))
        done = run_compiler(_command(inputs, files, against, wrap, part), timeout=600)
        if done.returncode:
            raise CompileError(
                "the overlay does not link against the official wheel",
                cause=done.tail,
                remedy="an undefined symbol means a unit is missing (extra_units in build/releases.toml) "
                "or the sources are not those of the wheel",
            )
    target.chmod(0o755)
    return target
