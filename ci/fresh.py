"""A bare system that runs README's commands: `nox -s fresh -- ['COMMAND' …]`, as root on Debian or Ubuntu.

debootstrap makes the distribution's minimal base with the packages that README names, and nothing else. A clone of HEAD
in it runs the commands of README's section "Two commands", with an empty home folder. The settings of pip and apt, the
certificates and the proxies of this machine hold there, too. Mounts and processes have namespaces of their own, so that
all ends with this program.
"""

from __future__ import annotations

import configparser
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from build.bootstrap import pip_settings
from build.cli import guarded, only, run
from build.console import console, log, log_to_file, note, step
from build.errors import EnvironmentUnfitError, ProbeError
from build.git import Git
from build.paths import DIST, REPO, cache, clear, locked
from build.process import run as quietly
from build.process import run_shown

#: Variables of this machine that say how the network is reached.
_NETWORK = re.compile(r"(?:https?|no|all)_proxy|(?:PIP|UV|SSL)_\w+", re.IGNORECASE)
#: Seconds for one command: downloads of several GB, a build and all suites on a slow machine.
_LONGEST = 4 * 3600.0
_CLONE = Path("root", "multiworld")
#: Settings of apt on how a mirror is reached; the others are the system's own.
_APT = re.compile(r"Acquire::(?:https?::|Check-|Retries|Force).*", re.MULTILINE)
_ENTER = Path(__file__).with_name("enter")
_UNSHARE = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]


def readme(text: str) -> tuple[list[str], list[str]]:
    """Return the packages and the commands of README's section "Two commands"."""
    section = text.partition("\n## Two commands\n")[2].partition("\n#")[0]
    packages = re.findall(r"^    sudo apt-get install (.+)$", section, re.MULTILINE)
    return packages[0].split(), re.findall(r"^    (python3 noxfile\.py .*?) *(?:#.*)?$", section, re.MULTILINE)


def _check() -> None:
    """Raise EnvironmentUnfitError if a program is missing, or this user may not make namespaces."""
    if missing := [name for name in ("debootstrap", "unshare", "apt-get") if shutil.which(name) is None]:
        what = f"a bare system cannot be made without {' and '.join(missing)}"
        raise EnvironmentUnfitError(what, remedy="on Debian and Ubuntu: apt-get install debootstrap util-linux")
    if os.geteuid() or (refused := quietly([*_UNSHARE, "true"])).returncode:
        what = "a bare system can be made by root only, where mounts are allowed"
        remedy = "run `nox -s fresh` as root, e.g. in a virtual machine or a privileged container"
        raise EnvironmentUnfitError(what, cause="this is another user" if os.geteuid() else refused.tail, remedy=remedy)


def _distribution() -> tuple[str, list[str], list[str]]:
    """Return this machine's suite, its components, and its mirror (none where only apt could reach that)."""
    suite = platform.freedesktop_os_release()["VERSION_CODENAME"]
    form = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
    done = quietly(["apt-get", "indextargets", "--no-release-info", "--format", form, "Created-By: Packages"])
    rows = [row.split() for row in done.stdout.decode().splitlines()]
    own = [row for row in rows if len(row) == 3 and row[1] == suite]
    mirror = next((row[0] for row in own if row[0].startswith(("http", "file:"))), "")
    return suite, sorted({row[2] for row in own} | {"main"}), [mirror] if mirror else []


def _settings(root: Path, kept: Mapping[str, str]) -> list[Path]:
    """Write how this machine reaches the network into `root`; return the paths that the settings name."""
    pip = configparser.RawConfigParser()
    pip.read_dict({name: values for name, values in pip_settings().items() if name != ":env:"})
    with (root / "etc" / "pip.conf").open("w") as file:
        pip.write(file)
    apt = _APT.findall(quietly(["apt-config", "dump"]).stdout.decode())
    (root / "etc" / "apt" / "apt.conf.d" / "99network").write_text("\n".join(apt) + "\n")
    for name in ("resolv.conf", "hosts"):
        shutil.copy(Path("/etc", name), root / "etc" / name)
    return sorted(set(_paths([*kept.values(), *apt, *(value for part in pip.values() for value in part.values())])))


def _paths(values: list[str]) -> Iterator[Path]:
    for scheme, name in re.findall(r"(?:(file://)|(?<![\w/.]))(/[^\s\"';,]+)", " ".join(values)):
        path = Path(name)
        # The pages of an index that is a folder name files beside it.
        path = path.parent if scheme and path.is_dir() else path
        if path.exists() and path != Path("/"):
            yield path


def inside(root: Path, line: str, outside: list[Path], environment: Mapping[str, str]) -> int:
    """Run a line of bash in the clone of a system and return its exit status.

    Args:
        root: where the system is; `/dev`, `/proc` and `/sys` are mounted for the command alone.
        line: what bash runs.
        outside: paths of this machine that the command sees, too.
        environment: variables, on top of those of a fresh login.
    """
    login = {"HOME": "/root", "LANG": "C.UTF-8", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    variables = [f"{name}={value}" for name, value in {**login, **environment}.items()]
    # Bash stays, and takes the exit status of what its children leave behind, as a system's first process does.
    shell = ["bash", "-c", f"cd /{_CLONE} && {line}\nexit $?"]
    enter = [str(_ENTER), str(root), "env", "-i", *variables, *shell]
    return _shown([*_UNSHARE, *enter], {"OUTSIDE": " ".join(map(str, outside))})


def _shown(command: list[str], environment: Mapping[str, str]) -> int:
    def seen(line: str) -> None:
        console.print(line, markup=False)
        log.info("%s", line)

    return run_shown(command, cwd=Path("/"), env=environment, timeout=_LONGEST, seen=seen)


def fresh(
    commands: Annotated[list[str] | None, typer.Argument(help="lines for bash in the clone; default README's")] = None,
) -> None:
    """Make a bare system, and run README's commands in it, or others."""
    _check()
    log_to_file(DIST / "fresh.log")
    packages, documented = readme((REPO / "README.md").read_text(encoding="utf-8"))
    if changed := Git(REPO).changed_files():
        note(f"not committed, so not part of the clone: {', '.join(changed[:5])}")
    kept = cache("fresh") / "packages"
    root = kept.with_name(f".{kept.name}.system.part")
    with locked(kept, "the bare system"):
        clear(root)  # of a run that was killed
        try:
            suite, components, mirror = _distribution()
            step(f"{suite} with {' '.join(packages)}, some minutes; what is downloaded for it stays in {kept}")
            kept.mkdir(exist_ok=True)
            options = ["--variant=minbase", f"--include={','.join(packages)}", f"--components={','.join(components)}"]
            command = ["debootstrap", *options, f"--cache-dir={kept}", suite, root, *mirror]
            if _shown([*_UNSHARE, "--mount-proc", *map(str, command)], {}):
                cause, remedy = f"no mirror in reach, or no room in {root.parent}", f"see {DIST / 'fresh.log'}"
                raise EnvironmentUnfitError(f"debootstrap could not make {suite}", cause=cause, remedy=remedy)
            Git(REPO).out("clone", "--quiet", "--no-hardlinks", f"file://{REPO}", str(root / _CLONE))
            _run(root, commands or documented)
        finally:
            clear(root)


def _run(root: Path, commands: list[str]) -> None:
    kept = {name: value for name, value in os.environ.items() if _NETWORK.fullmatch(name)}
    outside = _settings(root, kept)
    failed = []
    for line in commands:
        step(f"$ {line}")
        if status := inside(root, line, outside, kept):
            failed.append(f"{line}\nfailed on a bare system with status {status}")
    if failed:
        cause = "it needs what README does not name, or what it needs is broken"
        raise ProbeError("\n".join(failed), cause=cause, remedy=f"see {DIST / 'fresh.log'}")
    step(f"{len(commands)} commands ran on a bare system")


if __name__ == "__main__":
    sys.exit(run(lambda: guarded(only(fresh))))
