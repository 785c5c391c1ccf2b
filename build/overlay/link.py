"""Link the objects into the overlay, so that every undefined symbol resolves against the exact wheel."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from build.errors import CompileError
from build.overlay.model import Inputs, Object
from build.overlay.registrations import compile_shim, to_wrap
from build.overlay.stubs import import_stubs
from build.overlay.symbols import run_path
from build.overlay.toolchain import run_compiler
from build.paths import atomic_write

SONAME = "libtorch_mw.so"
#: The libraries whose symbols the units use, in the order in which they must be searched at run time.
_NEEDED = ("libtorch_cuda.so", "libtorch_cpu.so", "libc10_cuda.so", "libc10.so")


def _run_path(inputs: Inputs) -> str:
    """Return the run path: the overlay lies two folders below site-packages, as torch/lib does, in either wheel."""
    return "$ORIGIN/../../torch/lib:" + run_path(inputs.lib / "libtorch_cuda.so")


def _command(
    inputs: Inputs, objects: Sequence[Path], stubs: Sequence[Path], wrap: str, target: Path
) -> list[str | Path]:
    """Return the link line."""
    needed = [inputs.lib / name for name in _NEEDED]
    line: list[str | Path] = [inputs.toolchain.cxx, "-shared", "-fPIC", "-s", "-o", target, *objects]
    line += ["-Wl,-z,defs", "-Wl,-z,relro", "-Wl,--build-id=sha1", f"-Wl,-soname,{SONAME}"]
    line += ["-Wl,--disable-new-dtags", f"-Wl,-rpath,{_run_path(inputs)}"]
    line += [f"-Wl,--wrap={wrap}"] if wrap else []
    line += [f"-Wl,-rpath-link,{inputs.lib}", "-Wl,--no-as-needed", *needed, "-Wl,--as-needed", *stubs]
    # Not for its symbols: loaded as a dependency of the overlay, libtorch_python looks symbols up in the overlay's
    # scope, overlay first, without anything becoming global to the process.
    return [*line, "-Wl,--no-as-needed", inputs.lib / "libtorch_python.so"]


def link(inputs: Inputs, objects: Sequence[Object], target: Path) -> Path:
    """Link `objects` into `target`.

    Raises:
        CompileError: the linker fails, e.g. since a symbol is in no library of the wheel.
        OverlayCheckError: a static initialiser would register twice.
    """
    wrap = to_wrap(objects)
    with tempfile.TemporaryDirectory(prefix="link-") as scratch, atomic_write(target) as part:
        files = [item.path for item in objects]
        if wrap:
            files.append(compile_shim(inputs, wrap, Path(scratch)))
        stubs = import_stubs(inputs, Path(scratch))
        done = run_compiler(_command(inputs, files, stubs, wrap, part), timeout=600)
        if done.returncode:
            raise CompileError(
                "the overlay does not link against the official wheel",
                cause=done.tail,
                remedy="an undefined symbol means a unit is missing (extra_units in build/releases.toml) "
                "or the sources are not those of the wheel",
            )
    target.chmod(0o755)
    return target
