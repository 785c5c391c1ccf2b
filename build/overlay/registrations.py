"""Static initialisers that register something by name: the overlay's copy must not do it a second time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from build.errors import CompileError, OverlayCheckError
from build.overlay.flags import code_flags, path_flags
from build.overlay.model import Inputs, Object
from build.overlay.symbols import demangle, undefined
from build.overlay.toolchain import run_compiler

_SOURCE = Path(__file__).with_name("native") / "register_once.cpp"
#: The registration that `native/register_once.cpp` makes safe.
_WRAPPED = "c10d::control_plane::registerHandler("
#: Registrations of PyTorch that take a name once per process, and that no shim exists for.
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


def to_wrap(objects: Iterable[Object]) -> str:
    """Return the mangled name of the registration function to wrap, empty when no object calls it.

    Raises:
        OverlayCheckError: an object calls a registration that no shim makes safe.
    """
    spelt = demangle(undefined(item.path for item in objects))
    unsafe = sorted(name for name in spelt.values() if name.startswith(_OTHERS))
    if unsafe:
        raise OverlayCheckError(
            f"the overlay would register twice: {', '.join(unsafe)}",
            cause="a unit in the overlay registers something when it is loaded, and stock has registered it already",
            remedy="write a shim for it as build/overlay/native/register_once.cpp does, or make a full build",
        )
    return next((symbol for symbol, name in spelt.items() if name.startswith(_WRAPPED)), "")


def compile_shim(inputs: Inputs, symbol: str, folder: Path) -> Path:
    """Compile the shim for `symbol` and return its object file.

    Raises:
        CompileError: it does not compile against this release.
    """
    target = folder / "register_once.o"
    flags = [*code_flags(inputs.release), *path_flags(inputs, folder), f"-ffile-prefix-map={_SOURCE.parent}=multiworld"]
    line: list[str | Path] = [inputs.toolchain.cxx, *flags, f"-DREGISTER_HANDLER={symbol}", "-c", _SOURCE, "-o", target]
    done = run_compiler(line, timeout=600)
    if done.returncode:
        raise CompileError("the registration shim does not compile against this release", cause=done.tail)
    return target
