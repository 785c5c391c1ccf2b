"""Repair a compiled wheel: libraries of other distributions become requirements, others come along, the tag is honest.

auditwheel copies the libraries that no distribution has, and finds the platform tag. What it does not know is done
here: search paths into other distributions, and the requirements for these.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import reduce
from pathlib import Path

from auditwheel.architecture import Architecture
from auditwheel.elfutils import elf_file_filter
from auditwheel.libc import Libc
from auditwheel.policy import WheelPolicies
from auditwheel.tools import dir2zip, zip2dir
from auditwheel.wheeltools import rewrite_record
from packaging.requirements import Requirement

from build.errors import WheelError, reading
from build.full.project import External, Project
from build.overlay.model import Check
from build.overlay.symbols import needed, run_path
from build.paths import atomic_write, sweep
from build.process import run
from build.wheels.archive import EPOCH, check_archive
from build.wheels.patched import patchelf
from build.wheels.platforms import newer, oldest, platform_tag

#: The driver's libraries: they come with the driver, and no wheel may bring them.
DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1")


@dataclass(frozen=True, slots=True)
class Repaired:
    """A repaired wheel: libraries of the build machine that are in it now, its tag, and what was found in it."""

    path: Path
    copied: tuple[str, ...]
    tag: str
    checks: tuple[Check, ...]


def repair(
    project: Project,
    built: Path,
    external: Mapping[Path, External],
    libraries: Sequence[Path],
    provenance: bytes,
    folder: Path,
) -> Repaired:
    """Write the repaired wheel into `folder`.

    Args:
        built: the wheel as the project's build made it; it is only read.
        external: libraries of other distributions, by their places in `site-packages`.
        libraries: folders with the build's libraries, in which those to copy are searched.
        provenance: JSON about the build, kept in the wheel's dist-info.

    Raises:
        WheelError: its version is not the project's, a library is found nowhere, or the result fails a check.
    """
    with tempfile.TemporaryDirectory(prefix="repair-") as scratch:
        tree, plain = Path(scratch, "tree"), Path(scratch, built.name)
        with reading(built.name):
            zip2dir(built, tree)
        # The version must be the one that was asked for.
        names = [path.name for path in tree.glob("*.dist-info")]
        text = (tree / names[0] / "METADATA").read_text(encoding="utf-8") if len(names) == 1 else ""
        found = re.search(r"^Version: (.*)$", text, re.M)
        if found is None or found[1] != project.version:
            what = f"the build made version {found[1] if found else '(none)'}, not {project.version}"
            raise WheelError(what, remedy="set the variable that its build reads, in the project's `environment`")
        info = names[0]
        _require(tree / info / "METADATA", _link(external, tree))
        document = tree / info / "multiworld.json"
        document.write_bytes(provenance)
        document.chmod(0o644)
        before = {path.name for path in elves(tree)}
        _pack(tree, plain)
        audited = _audited(external, plain, libraries, Path(scratch, "audited"))
        return _write(audited, before, info, folder)


def elves(tree: Path) -> list[Path]:
    files = (path for path in sorted(tree.rglob("*")) if path.is_file() and not path.is_symlink())
    return [path for path, _ in elf_file_filter(files) if path.suffix not in (".o", ".a")]


def _link(external: Mapping[Path, External], tree: Path) -> list[External]:
    """Let each library find those that it needs, in the wheel or in another distribution; return the latter.

    Folders of the build machine go from the search paths.
    """
    files = elves(tree)
    homes = {path.name: path.parent.relative_to(tree).as_posix() for path in reversed(files)}
    elsewhere = {file.name: file for file in external}
    used: set[External] = set()
    for path in files:
        folders, here = [], path.parent.relative_to(tree)
        for library in needed(path):
            if library in homes:
                folders.append(os.path.relpath(homes[library], here))
            elif (file := elsewhere.get(library)) is not None:
                folders.append(os.path.relpath(file.parent, here))
                used.add(external[file])
        _set_run_path(path, ":".join("$ORIGIN" if way == "." else f"$ORIGIN/{way}" for way in dict.fromkeys(folders)))
    return [item for item in dict.fromkeys(external.values()) if item in used]


def _set_run_path(path: Path, wanted: str) -> None:
    """Set the search path as the official wheels have it: DT_RPATH, which holds for indirect libraries too."""
    if not wanted and not run_path(path):
        return
    patchelf(*(["--force-rpath", "--set-rpath", wanted] if wanted else ["--remove-rpath"]), path)


def _require(metadata: Path, used: Iterable[External]) -> None:
    """Add the requirements to METADATA, whose fields end at the first empty line."""
    fields, separator, body = metadata.read_text(encoding="utf-8").partition("\n\n")
    have = {Requirement(line).name for line in re.findall(r"^Requires-Dist: (.*)", fields, re.M)}
    lines = [f"Requires-Dist: {item.requirement}" for item in used if Requirement(item.pin).name not in have]
    metadata.write_text("\n".join([fields.rstrip("\n"), *lines]) + (separator or "\n") + body, encoding="utf-8")


def _pack(tree: Path, target: Path) -> None:
    rewrite_record(tree)
    dir2zip(tree, target, 9, datetime(*EPOCH, tzinfo=timezone.utc))


def _audited(external: Iterable[Path], plain: Path, libraries: Sequence[Path], out: Path) -> Path:
    """Let auditwheel copy the libraries that no distribution has, and tag the wheel; return its wheel."""
    patterns = [*(file.name for file in external), *DRIVER]
    policies = WheelPolicies(libc=Libc.GLIBC, arch=Architecture(os.uname().machine))
    # With a platform named, auditwheel need not guess the C library; it adds the best tag that the wheel deserves.
    newest = reduce(newer, (str(policy.name) for policy in policies if policy.name.startswith("manylinux_")))
    options = ["--plat", newest, *(part for pattern in patterns for part in ("--exclude", pattern))]
    search = os.pathsep.join([*map(str, libraries), os.environ.get("LD_LIBRARY_PATH", "")]).rstrip(os.pathsep)
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    command = [sys.executable, "-m", "auditwheel", "repair", *options, "--wheel-dir", str(out), str(plain)]
    done = run(command, env={"LD_LIBRARY_PATH": search, "PATH": path}, timeout=3600)
    made = sorted(out.glob("*.whl"))
    if done.returncode or len(made) != 1:
        remedy = "a library that it does not find belongs into `externals` of the project, or on this machine"
        raise WheelError(f"auditwheel cannot repair {plain.name}", cause=done.tail, remedy=remedy)
    return made[0]


def _write(audited: Path, before: set[str], info: str, folder: Path) -> Repaired:
    """Write auditwheel's wheel again, with one tag, and the same bytes for the same input, and check it."""
    name, version, interpreter, abi, platforms = audited.name.removesuffix(".whl").split("-")
    tag = oldest(platforms.split("."))
    final = folder / f"{name}-{version}-{interpreter}-{abi}-{tag}.whl"
    sweep(final)
    with tempfile.TemporaryDirectory(prefix="repaired-") as scratch, atomic_write(final) as part:
        tree = Path(scratch)
        zip2dir(audited, tree)
        wheel = tree / info / "WHEEL"
        lines = re.sub(r"^Tag: .*\n|^\n", "", wheel.read_text(encoding="utf-8"), flags=re.M)
        wheel.write_text(f"{lines}Tag: {interpreter}-{abi}-{tag}\n", encoding="utf-8")
        _pack(tree, part)
        check_archive(part)
        files = elves(tree)
        # The tag is compared with what this project's own reading of the symbol versions says.
        parts = ((path.name, part) for path in files for part in run_path(path).split(":"))
        wrong = ", ".join(f"{name}: {part}" for name, part in parts if part and not part.startswith("$ORIGIN"))
        needs = reduce(newer, map(platform_tag, files))
        checks = (
            Check("no search path names a folder of the build machine", not wrong, wrong or "all from $ORIGIN"),
            Check("the platform tag is what the binaries need", newer(tag, needs) == tag, f"{tag}; these need {needs}"),
        )
        if failed := [check for check in checks if not check.passed]:
            lines = "".join(f"\n- {item.name}: {item.detail}" for item in failed)
            raise WheelError(f"the repaired wheel fails its checks:{lines}", remedy="see `externals` of the project")
    return Repaired(final, tuple(sorted({path.name for path in files} - before)), tag, checks)
