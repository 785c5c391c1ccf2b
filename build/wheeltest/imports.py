"""Import built wheels in fresh processes: only a wheel that loads is called built.

The packages of NVIDIA have 2.5 GB, and to load torch's libraries needs their names only. So stubs take their place,
whose functions return 0; all else is real: torch with all of its initialisers, the overlay, Python, and what torch
imports of other packages. Importing torch asks no device.
"""

from __future__ import annotations

import subprocess
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

from auditwheel.elfutils import elf_find_versioned_symbols
from elftools.elf.elffile import ELFFile

from build.console import step
from build.errors import OverlayCheckError, reading
from build.official.facts import needs
from build.overlay.runtime import Export, stub
from build.overlay.symbols import dynamic, exported, needed
from build.overlay.toolchain import Toolchain
from build.paths import cache
from build.process import run, run_together
from build.seals import built
from build.wheeltest.environments import install_into

#: Members that importing needs not, or that are linked: the libraries, of which the official wheel is unpacked already.
_LEFT_OUT = ("torch/include/", "torch/share/", "torch/test/")
_LIB = "torch/lib/"
#: Packages with the libraries that are stubs here, and what only compiles kernels for devices.
_OF_DEVICES = ("nvidia-", "triton", "pytorch-triton")
#: How functions of the stubs begin. Others without a version are those of the C++ runtime, which is real.
_NAMES = ("cu", "__cuda", "nccl", "nv")
#: Variables that load other libraries into a process, or that switch an overlay off.
_STEERING = ("LD_PRELOAD", "LD_AUDIT", "LD_BIND_NOW", "MULTIWORLD_TORCH_OVERLAY", "TORCH_DEVICE_BACKEND_AUTOLOAD")
#: Seconds for one import.
_LONGEST = 600.0
#: Arguments: the folder of packages, and the overlay. Prints the version, and whether the overlay is in the process.
_PROGRAM = """
import importlib.util, site, sys
site.addsitedir(sys.argv[1])
import torch
if importlib.util.find_spec("torch.distributed"):
    import torch.distributed
print(torch.__version__, sys.argv[2] in open("/proc/self/maps").read())
"""


@dataclass(frozen=True, slots=True)
class Subject:
    """Wheels that are imported together, the last one built here, with the version and the overlay that it has."""

    wheels: tuple[Path, ...]
    version: str
    soname: str


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Interpreter, unpacked `torch/lib`, stubs and packages with which the wheels of one release are imported."""

    python: Path
    libraries: Path
    stubs: Path
    packages: Path


def _make_stubs(toolchain: Toolchain, libraries: Sequence[Path], folder: Path) -> None:
    """Make a stub of each library that the wheel's libraries need and that neither the wheel nor the system has."""
    sonames = {name for library in libraries for name in needed(library)} - {library.name for library in libraries}
    missing = sorted(name for name in sonames if name.startswith(("libcu", "libnv", "libnccl")))
    versions: dict[str, str] = {}
    for library in libraries:
        with library.open("rb") as stream:
            versions |= {version: name for name, version in elf_find_versioned_symbols(ELFFile(stream))}
    have = {name for library in libraries for name in exported(library)}
    by_library: dict[str, dict[tuple[str, str], Export]] = defaultdict(dict)
    for item in (item for library in libraries for item in dynamic(library, "U") if item.name not in have):
        home = versions.get(item.version, missing[0] if missing and item.name.startswith(_NAMES) else "")
        if home in missing:
            by_library[home][item.name, item.version] = Export(item.name, "FUNC", item.version)
    for soname in missing:
        every = by_library[soname]
        stub(toolchain, soname, [every[key] for key in sorted(every)], folder)


def surroundings(python: Path, version: str, toolchain: Toolchain, official: Path, libraries: Path) -> Surroundings:
    """Return what the wheels of a release are imported with; stubs and packages are made once, in the cache.

    Args:
        python: interpreter of CPython `version`.
        official: the official wheel.
        libraries: its `torch/lib`, unpacked.

    Raises:
        EnvironmentUnfitError: the packages that torch imports cannot be installed.
    """
    with reading(official.name), official.open("rb") as stream:
        every = needs(stream)
    wanted = sorted(f"{item.name}{item.specifier}" for item in every if not item.name.startswith(_OF_DEVICES))
    files = sorted(libraries.glob("*.so*"))
    parts = [version, toolchain.identity, str(libraries.parent.parent.name), *wanted]
    key = sha256("\0".join(parts).encode()).hexdigest()[:16]

    def fill(part: Path) -> None:
        step("preparing to import the wheels: stubs of NVIDIA's libraries, and packages that torch requires")
        for name in ("stubs", "packages"):
            (part / name).mkdir()
        _make_stubs(toolchain, files, part / "stubs")
        if wanted:
            install_into(part / "packages", python, *wanted)

    made = built(cache("imports") / key, "what wheels are imported with", fill)
    return Surroundings(python, libraries, made / "stubs", made / "packages")


def _unpack(wheels: Iterable[Path], around: Surroundings, site: Path) -> None:
    """Unpack what importing needs of wheels, with links to the libraries of the official wheel."""
    lib = site / _LIB
    lib.mkdir(parents=True)
    for path in around.libraries.iterdir():
        (lib / path.name).symlink_to(path)
    for path in around.packages.iterdir():
        (site / path.name).symlink_to(path)
    for wheel in wheels:
        with reading(wheel.name), zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if not name.startswith(_LEFT_OUT) and not (name.startswith(_LIB) and (site / name).exists()):
                    archive.extract(name, site)


def _import(subject: Subject, around: Surroundings) -> str:
    """Import the wheels of a subject; return what is wrong, empty when nothing is."""
    with tempfile.TemporaryDirectory(prefix="import-") as scratch:
        site = Path(scratch)
        _unpack(subject.wheels, around, site)
        # Isolated: nothing of the user's packages and variables counts; nothing is written beside the cached packages.
        command: list[str | Path] = [around.python, "-I", "-S", "-B", "-c", _PROGRAM, site, subject.soname]
        environment = {"LD_LIBRARY_PATH": str(around.stubs)}
        try:
            done = run(command, cwd=site, env=environment, without=_STEERING, timeout=_LONGEST)
        except subprocess.TimeoutExpired:  # e.g. an initialiser that waits for a lock
            return f"{subject.wheels[-1].name}: importing torch did not end in {_LONGEST:.0f} s"
    said = done.stdout.decode("utf-8", "replace").split()
    if not done.returncode and said == [subject.version, "True"]:
        return ""
    name = subject.wheels[-1].name
    if done.returncode:
        return f"{name}: importing torch ends with status {done.returncode}: {done.tail}"
    return f"{name}: torch is imported as {' '.join(said[:1])}, without its overlay: {done.tail}"


def require(subjects: Sequence[Subject], around: Surroundings) -> None:
    """Import each subject in a process of its own, at once.

    Raises:
        OverlayCheckError: a process failed, or it had no overlay; the message has the last lines of each.
    """
    step(f"importing {' and '.join(subject.wheels[-1].name.partition('-')[0] for subject in subjects)}")
    failed = [said for said in run_together([partial(_import, subject, around) for subject in subjects]) if said]
    if failed:
        what, cause = "a wheel does not import, so it is not called built", "\n".join(failed)
        remedy = "move the change to a unit without initialisers, which run a second time, or make a full build"
        raise OverlayCheckError(what, cause=cause, remedy=remedy)
