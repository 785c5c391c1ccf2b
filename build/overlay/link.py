"""Link the objects into the overlay, so that every undefined symbol resolves against the exact wheel.

NCCL, the CUDA runtime and OpenMP's are linked through import stubs, so that linking needs none of their 200 MB. A stub
exports exactly what the wheel's own libraries import from the real library, with the same symbol versions: the overlay
needs nothing that stock does not need. Handlers that the units register by name when they are loaded take the place of
stock's.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from build.errors import OverlayCheckError
from build.overlay.flags import code_flags, path_flags
from build.overlay.model import LIBRARIES, PYTHON, Inputs, Object
from build.overlay.relocations import Part, reachable, read
from build.overlay.runtime import Export, exports, prepare, stub
from build.overlay.symbols import demangle, dynamic, exported, names, needed, run_path, undefined
from build.overlay.toolchain import make
from build.paths import atomic_write
from build.releases import Release

_STEM = "libtorch_mw"
#: The libraries whose symbols the units use, in the order in which they must be searched at run time.
_NEEDED = ("libtorch_cuda.so", "libtorch_cpu.so", "libc10_cuda.so", "libc10.so")
#: Prefix of the functions of each library outside the wheel that host units call.
_PREFIXES = {"libnccl.so": ("nccl", "pnccl"), "libcudart.so": ("cuda",), "libgomp": ("GOMP_", "omp_")}
_IMPORTERS = ("libtorch_cuda.so", "libc10_cuda.so", "libtorch_cpu.so")
_HANDLERS = Path(__file__).with_name("native") / "handlers.cpp"
#: What the overlay's own units call the real function that registers handlers, see `native/handlers.cpp`.
_REAL = "multiworld_register_handler"
#: What compilers call the code of a unit that runs when it is loaded.
_INITIALISER = "_GLOBAL__sub_I"
#: The registration that `native/handlers.cpp` makes safe.
_HANDLER = "c10d::control_plane::registerHandler("
#: Registrations of PyTorch for which the first one of a name counts, or each of them. Others replace what stock has.
_UNSAFE = (
    "torch::Library::_def(",
    "torch::Library::_impl(",
    "torch::Library::_fallback(",
    "torch::detail::class_base::class_base(",
    "torch::RegisterOperators::",
    "torch::jit::registerOperator(",
    "torch::jit::registerPostPass(",
    "torch::jit::registerPrePass(",
    "c10::RegisterOperators::",
    "c10::Dispatcher::addRegistrationListener(",
    "c10::Dispatcher::registerDef",
    "c10::Dispatcher::registerImpl",
    "c10::Dispatcher::registerLibrary",
    "c10::Registry<",
    "c10d::register_dma_connectivity_detector(",
    "c10d::registerProcessGroup",
    "at::RegisterCUDAHooks",
)


def at_load(paths: Iterable[Path]) -> frozenset[str]:
    """Return the names that static initialisers of objects reach, also by functions whose address they take."""
    objects = [read(path) for path in paths]
    defined: dict[str, list[Part]] = defaultdict(list)
    for item in objects:
        for name, part in item.defined.items():
            defined[name].append(part)
    edges = {part: targets for item in objects for part, targets in item.reached.items()}
    starts = (parts for item in objects for name, parts in item.local.items() if name.startswith(_INITIALISER))

    def onward(part: Part) -> Iterator[Part]:
        for target in edges.get(part, ()):
            yield from [target] if isinstance(target, Part) else defined[target]

    seen = reachable((part for parts in starts for part in parts), onward)
    return frozenset(target for part in seen for target in edges.get(part, ()) if isinstance(target, str))


def handler_registration(objects: Sequence[Object]) -> str:
    """Return the mangled name of the function that registers handlers, empty when no object calls it when loaded.

    Raises:
        OverlayCheckError: the objects register something else that stock has registered.
    """
    reached = at_load(item.path for item in objects)
    spelt = demangle(reached)
    # An instance of a template has its return type before its name.
    unsafe = sorted(name for name in spelt.values() if any(name.startswith(it) or f" {it}" in name for it in _UNSAFE))
    if unsafe := [name for name in unsafe if not name.startswith("c10::Registry<") or ">::Register(" in name]:
        what = f"the overlay would register twice: {', '.join(unsafe)}"
        raise OverlayCheckError(what, remedy="move the change to a unit without registrations, or make a full build")
    return next((symbol for symbol, name in spelt.items() if name.startswith(_HANDLER)), "")


def soname(release: Release) -> str:
    """Return the name of the library; that of a user's patches has the label, since a process may find two."""
    return f"{_STEM}_{release.label}.so" if release.label else f"{_STEM}.so"


def _redirected(objects: Sequence[Object], symbol: str, folder: Path) -> list[Path]:
    """Return the object files, with another name for `symbol` in copies of those that have it."""
    files = []
    for number, item in enumerate(objects):
        have = names(item.path)
        if symbol not in have.defined and symbol not in have.undefined:
            files.append(item.path)
            continue
        files.append(folder / f"{number}.o")
        command: list[str | Path] = ["objcopy", f"--redefine-sym={symbol}={_REAL}", item.path, files[-1]]
        make(command, f"{item.unit}: a symbol cannot be renamed", remedy="update binutils")
    return files


def _handlers(inputs: Inputs, objects: Sequence[Object], symbol: str, folder: Path) -> Path:
    """Compile `native/handlers.cpp` for the function `symbol` that registers handlers, and return its object file."""
    target = folder / "handlers.o"
    own = any(symbol in names(item.path).defined for item in objects)
    home = next((name for name in inputs.replaceable if symbol in exported(inputs.lib / name)), "")
    real = ["-DOWN_REGISTRY"] if own else [f'-DHOME="{home}"', f'-DREGISTER_HANDLER="{symbol}"']
    line: list[str | Path] = [inputs.toolchain.cxx, *code_flags(inputs.release), *path_flags(inputs, folder)]
    line += [f"-ffile-prefix-map={_HANDLERS.parent}=multiworld", *real, "-c", _HANDLERS, "-o", target]
    remedy = f"adapt build/overlay/native/{_HANDLERS.name} to the release's headers, or make a full build"
    make(line, "the registration of handlers does not compile against this release", remedy=remedy)
    return target


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
    """Make stubs in `folder`, under the sonames that the wheel's libraries need, of what these import from each."""
    importers = [inputs.lib / name for name in (*_IMPORTERS, *([PYTHON] if inputs.per_python else []))]
    sonames = sorted({name for library in importers for name in needed(library)})
    imported = {item.name: item for library in importers for item in dynamic(library, "U")}
    stubs = []
    for stem, prefixes in _PREFIXES.items():
        found = [Export(name, "FUNC", imported[name].version) for name in sorted(imported) if name.startswith(prefixes)]
        stubs += [stub(inputs.toolchain, soname, found, folder) for soname in sonames if soname.startswith(stem)]
    return stubs


def _command(inputs: Inputs, objects: Sequence[Path], folder: Path, target: Path) -> list[str | Path]:
    """Return the linker's command line; what takes the place of other libraries goes to `folder`."""
    # In either wheel the overlay is two folders below site-packages, as torch/lib is.
    rpath = "$ORIGIN/../../torch/lib:" + run_path(inputs.lib / "libtorch_cuda.so")
    libraries, stubs = [inputs.lib / name for name in _NEEDED], _import_stubs(inputs, folder)
    line: list[str | Path] = [inputs.toolchain.cxx, "-shared", "-fPIC", "-s", "-o", target, *objects]
    line += ["-Wl,-z,defs", "-Wl,-z,relro", "-Wl,--build-id=sha1", f"-Wl,-soname,{soname(inputs.release)}"]
    line += ["-Wl,--disable-new-dtags", f"-Wl,-rpath,{rpath}"]
    line += [f"-Wl,-rpath-link,{inputs.lib}", "-Wl,--no-as-needed", *libraries, "-Wl,--as-needed", *stubs]
    line += prepare(inputs.toolchain, [inputs.lib / name for name in LIBRARIES])
    # Not for its symbols: as a dependency of the overlay, libtorch_python looks symbols up in the overlay's scope,
    # overlay first, and the process gets no global symbols.
    return [*line, "-Wl,--no-as-needed", _bindings(inputs, objects, folder)]


def link(inputs: Inputs, objects: Sequence[Object], target: Path) -> Path:
    """Link `objects` into `target`.

    Raises:
        CompileError: the linker fails, e.g. because the wheel's libraries lack a symbol.
        OverlayCheckError: a static initialiser would register a name a second time.
    """
    symbol = handler_registration(objects)
    with tempfile.TemporaryDirectory(prefix="link-") as scratch, atomic_write(target) as part:
        files = [item.path for item in objects]
        if symbol:  # the last one: its initialiser follows those of the units
            files = [*_redirected(objects, symbol, Path(scratch)), _handlers(inputs, objects, symbol, Path(scratch))]
        command = _command(inputs, files, Path(scratch), part)
        remedy = "for an undefined symbol, name its unit, `extra_units` in build/releases.toml; or check the sources"
        make(command, "the overlay does not link against the official wheel", remedy=remedy)
    target.chmod(0o755)
    return target
