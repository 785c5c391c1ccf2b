"""The build of the native imitation for one installed torch, once, in the user's cache.

A process that runs on it has real peers (`environment`), except for the probes of `python -m gpuless`: each is alone,
and the other ranks of its communicators are imaginary. `GPULESS_TRANSPORT=loopback` asks for that anywhere.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
from functools import partial
from pathlib import Path

from elftools.elf.elffile import ELFFile

from build import seals
from build.errors import EnvironmentUnfitError
from build.overlay.symbols import dynamic
from build.paths import cache
from build.process import run
from build.runtime.multiworld_torch_overlay._load import build_id
from gpuless.subject import Subject, examine

SOURCES = Path(__file__).resolve().parent / "native"
_FLAGS = ("-shared", "-fPIC", "-O2", "-g", "-std=gnu11")
_LIBRARIES = ("-lpthread", "-ldl", "-lm")
# The imitated functions have the parameters of the real ones, and need few of them.
_OWN_FLAGS = ("-Wall", "-Wextra", "-Wno-unused-parameter", "-fvisibility=hidden")
_TIMEOUT = 120  # seconds for one compiler run
#: CUDA runtime, NCCL and the control block; stubs of what is not imitated; the driver's stubs.
IMITATION, _REST, _DRIVER = "libgpuless.so", "libgpuless_rest.so", "libcuda.so.1"


def preloading(subject: Subject) -> dict[str, str]:
    """Return the dynamic loader's variables that put the imitation before the real libraries."""
    # Bare names, found by the library path: LD_PRELOAD cannot hold a folder with a space in it.
    return {"LD_PRELOAD": f"{IMITATION}:{_REST}", "LD_LIBRARY_PATH": str(built(subject))}


def environment(
    python: Path, control: Path, *, devices: int = 2, network: bool = False, free_waits: bool = False, link: float = 0.0
) -> dict[str, str]:
    """Return the variables with which any process of an interpreter runs on the imitation, with real peers.

    Communicators connect the processes of this host that share a unique id; data moves. Two ranks on the same
    device are refused, as NCCL does, unless each has an `NCCL_HOSTID` of its own.

    Args:
        python: an interpreter with a CUDA build of torch.
        control: an existing folder for the control blocks, one file per process; see `gpuless.control`.
        devices: imitated devices per host.
        network: peers count as being on other hosts: NCCL notices their death and reports `ncclRemoteError`. Else
            it does not, and an operation with a dead peer hangs until its communicator is aborted.
        free_waits: `cudaFree` waits for all work of the device.
        link: GB/s at which a message of more than 64 KiB travels. It takes that time and no processor, as where a
            device's own engines copy, and only its first 64 KiB are moved: for measurements. 0 copies all of it, on
            this host's processors.

    Returns:
        The variables, to be set on top of others.

    Raises:
        EnvironmentUnfitError: no CUDA build of torch there, no C compiler, or it failed.
    """
    own = {"GPULESS_CONTROL": str(control), "GPULESS_DEVICES": str(devices)}
    switches = {"GPULESS_NETWORK": network, "GPULESS_FREE_WAITS": free_waits}
    if link:
        own["GPULESS_LINK"] = str(link)
    return preloading(examine(python)) | own | {name: "1" for name, on in switches.items() if on}


def built(subject: Subject) -> Path:
    """Return the folder of the imitation for this torch, built now unless it is in the cache.

    Raises:
        EnvironmentUnfitError: no C compiler, or it failed.
    """
    compiler = _compiler()
    place = cache("gpuless") / _digest(subject, compiler)[:32]
    fill = partial(_compile_all, subject, compiler)
    return seals.built(place, "the imitation of CUDA and NCCL", fill)


def _compiler() -> list[str]:
    asked = shlex.split(os.environ.get("CC", ""))
    for candidate in [asked] if asked else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(candidate[0]):
            return candidate
    what = f"no C compiler found ({' '.join(asked) or 'cc, gcc, clang'})"
    raise EnvironmentUnfitError(what, remedy="install gcc or clang, or set the variable CC to a compiler")


def _digest(subject: Subject, compiler: list[str]) -> str:
    version = run([*compiler, "--version"], timeout=_TIMEOUT)
    own = seals.digest_of(SOURCES.parent, [Path(__file__).resolve(), *SOURCES.rglob("*")])
    digest = hashlib.sha256(version.stdout + repr((compiler, _FLAGS, _OWN_FLAGS, subject.nccl_version, own)).encode())
    for header in ("cuda_runtime_api.h", "driver_types.h"):
        digest.update((subject.cuda_headers / header).read_bytes())
    for library in (*subject.torch_libraries, subject.cudart, subject.nccl):
        # NVIDIA's libraries have no build id; size and file name tell their versions apart.
        digest.update((build_id(library) or f"{library.name} {library.stat().st_size}").encode())
    return digest.hexdigest()


def _compile_all(subject: Subject, compiler: list[str], part: Path) -> None:
    imitation = part / IMITATION
    includes = [f"-I{SOURCES}", f"-I{SOURCES / 'shim'}", f"-I{subject.cuda_headers}"]
    define = f"-DFAKE_NCCL_VERSION={subject.nccl_version}"
    sources = [str(p) for p in sorted(SOURCES.glob("*.c"))]
    command = [*compiler, *_FLAGS, *_OWN_FLAGS, define, *includes, *sources, "-o", str(imitation), *_LIBRARIES]
    _run(command)
    # Imitated functions that the NCCL of this torch does not have: a caller may look for them.
    if more := exported(imitation, "nccl") - exported(subject.nccl, "nccl"):
        hidden = part / "hidden.map"
        hidden.write_text(f"{{ local: {' '.join(f'{name};' for name in sorted(more))} }};\n", encoding="utf-8")
        _run([*command, f"-Wl,--version-script={hidden}"])
    rest = _missing_source(subject, imitation)
    for name, text in ((_REST, rest), (_DRIVER, _driver_source(subject))):
        source = part / f"{name.partition('.')[0]}.c"
        source.write_text(text, encoding="utf-8")
        # `-w`: some names are compiler built-ins with other arguments, which do not matter here.
        _run([*compiler, *_FLAGS, "-w", str(source), f"-Wl,-soname,{name}", "-o", str(part / name)])


def _run(command: list[str]) -> None:
    done = run(command, timeout=_TIMEOUT)
    if done.returncode:
        what = f"the imitation of CUDA and NCCL does not compile: {shlex.join(command)}"
        remedy = "install a newer C compiler, or report the CUDA version with this output"
        raise EnvironmentUnfitError(what, cause=done.tail, remedy=remedy)


# A driver function's name as a whole string: c10 and ATen look these up with dlsym.
_DRIVER_NAME = re.compile(rb"\x00(cu[A-Z][a-z][A-Za-z0-9_]{2,60})(?=\x00)")
# These need neither a device nor handles: the real functions are used.
_PASSED_THROUGH = frozenset({"cudaGetErrorName", "cudaGetErrorString", "cudaRuntimeGetVersion", "cudaGetExportTable"})
_CUDA_NOT_SUPPORTED = 801
_NCCL_INVALID_USAGE = 5


def exported(library: Path, prefix: str) -> frozenset[str]:
    return frozenset(item.name for item in dynamic(library, "TWi") if item.name.startswith(prefix))


def driver_names(library: Path) -> frozenset[str]:
    """Return the CUDA driver functions a library names: linked ones, and strings given to dlsym.

    Strings that are not functions may match too; a superfluous stub is harmless.
    """
    linked = {item.name for item in dynamic(library, "U") if item.name.startswith("cu") and item.name[2:3].isupper()}
    with library.open("rb") as stream:
        section = ELFFile(stream).get_section_by_name(".rodata")
        strings = _DRIVER_NAME.findall(section.data() if section else b"")
    return frozenset(linked | {name.decode() for name in strings})


def _driver_source(subject: Subject) -> str:
    """Return C text with one succeeding function per driver symbol that torch looks up."""
    names = sorted(frozenset().union(*(driver_names(lib) for lib in subject.torch_libraries)))
    lines = ["/* Generated: the CUDA driver functions that the installed torch names. */"]
    for name in names:
        if name in {"cuGetErrorString", "cuGetErrorName"}:
            lines.append(f'int {name}(int code, const char **text) {{ *text = "imitated driver"; return 0; }}')
        else:
            lines.append(f"int {name}(void) {{ return 0; }}")
    return "\n".join(lines) + "\n"


def _missing_source(subject: Subject, imitation: Path) -> str:
    """Return C text with a failing, counting stub for each function of CUDA and NCCL that is not imitated."""
    cuda = exported(subject.cudart, "cuda") - exported(imitation, "cuda") - _PASSED_THROUGH
    nccl = exported(subject.nccl, "nccl") - exported(imitation, "nccl")
    lines = [
        "/* Generated: functions of the installed CUDA runtime and NCCL that are not imitated. */",
        "int gpuless_unimplemented(const char *name, int code);",
    ]
    for names, code in ((cuda, _CUDA_NOT_SUPPORTED), (nccl, _NCCL_INVALID_USAGE)):
        lines += (f'int {name}(void) {{ return gpuless_unimplemented("{name}", {code}); }}' for name in sorted(names))
    return "\n".join(lines) + "\n"
