"""A whole release in miniature, and the tooling's own command line over it in a real process."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from build import seals
from build.paths import REPO
from tests.build import forked
from tests.build.overlay import little as lt
from tests.build.overlay.little import Little
from tests.build.series.repos import make_patch, make_repo
from tests.build.wheels import little_wheel as lw

TIMEOUT = 120.0
MANIFEST = """
[series]
name = "little"
purpose = "adds 99 to the answer"
[[patch]]
id = "answer"
slug = "answer"
reason = "41 is not enough"
applies = ">=9"
[release."9.9.0"]
base_commit = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
patches = ["answer"]
verified = "probed"
"""
#: Another table of releases and other patches, for every Python that is started; all else is the real thing.
_SITE = """
from pathlib import Path
import build.paths, build.releases
here = Path(__file__).parent
build.paths.PATCHES = here / "patches"
build.releases.RELEASES_TOML = here / "releases.toml"
"""
#: A compiler that says when it compiles nccl.cpp, and then goes on only when it may; it does not outlive its folder.
_COMPILER = """#!/bin/sh
case " $* " in
  *" -c "*nccl.cpp*)
    if [ ! -e '{go}' ]; then
      echo $$ > '{started}.new' && mv '{started}.new' '{started}'
      while [ ! -e '{go}' ]; do [ -e '{started}' ] || exit 1; sleep 0.05; done
    fi;;
esac
exec g++ "$@"
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the miniature release lies, and where its results go."""

    folder: Path

    @property
    def dist(self) -> Path:
        return self.folder / "dist"

    @property
    def results(self) -> Path:
        return self.dist / lt.VERSION

    @property
    def tree(self) -> Path:
        return self.folder / "tree"

    @property
    def started(self) -> Path:
        return self.folder / "started"

    @property
    def go(self) -> Path:
        return self.folder / "go"

    def wheels(self) -> list[str]:
        return sorted(path.name for path in self.results.glob("*.whl"))

    def compilers(self) -> list[int]:
        """The compilers of this release that wait for `go`."""
        name = str(self.folder / "slow-g++").encode()
        return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if name in _words(path)]

    def leftovers(self) -> list[str]:
        """Leftovers that an interrupted run may not have: parts beside results, scratch folders, half objects."""
        objects, scratch = self.folder / "cache" / "objects", self.folder / "tmp"
        found = [*self.folder.rglob("*.part"), *objects.glob("*/tmp*"), *scratch.iterdir()]
        return [str(path.relative_to(self.folder)) for path in found]


def _words(cmdline: Path) -> list[bytes]:
    """Return the words of a process's command line, none for one that has ended."""
    try:
        return cmdline.read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def make(little: Little, folder: Path) -> Place:
    """Lay out sources, patches, wheel and the table of releases."""
    place = Place(folder)
    shutil.copytree(little.tree, place.tree)
    for name in ("cache", "index", "tmp"):
        (folder / name).mkdir()
    (folder / "cache" / "runtime").symlink_to(little.runtime)
    _, release = lw.official(little, folder / "index")
    write_patch(place, "return 100 +")
    (folder / "patches" / "little" / "manifest.toml").write_text(MANIFEST)
    entry = {key: value for key, value in msgspec.to_builtins(release).items() if value is not None}
    (folder / "releases.toml").write_bytes(msgspec.toml.encode({"release": {release.version: entry}}))
    (folder / "sitecustomize.py").write_text(_SITE)
    compiler = folder / "slow-g++"
    compiler.write_text(_COMPILER.format(go=place.go, started=place.started))
    compiler.chmod(0o755)
    return place


def copied(whole: Place, folder: Path) -> Place:
    """Copy a release that was built into `folder`; the seals of its cache are those of the copied files."""
    shutil.copytree(whole.folder, folder, symlinks=True, dirs_exist_ok=True)
    for path in (folder / "cache").rglob("*.seal"):
        entry = path.with_suffix("")
        assert seals.intact(entry) if entry.is_dir() else seals.is_file(entry, seals.sha256_of(entry)), entry
    return Place(folder)


def write_patch(place: Place, new: str) -> None:
    """Write the series anew: its one patch gives the answer's first summand."""
    repo = place.folder / "tmp-repo"
    git = make_repo(repo, {lt.NCCL_CPP: (place.tree / lt.NCCL_CPP).read_bytes()})
    ((path, text),) = lt.edited(lt.NCCL_CPP, "return 1 +", new).items()
    data = make_patch(git, {path: text.encode()}, "nccl: another answer")
    shutil.rmtree(repo)
    target = place.folder / "patches" / "little" / lt.VERSION / "0001-answer.patch"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)


def environment(place: Place, extra: dict[str, str]) -> dict[str, str]:
    own = {"MULTIWORLD_CACHE": place.folder / "cache", "PIP_FIND_LINKS": (place.folder / "index").as_uri()}
    own |= {"TMPDIR": place.folder / "tmp", "MULTIWORLD_UPSTREAM": place.folder / "no-upstream"}
    python = {"PYTHONPATH": f"{place.folder}{os.pathsep}{REPO}", "PYTHONFAULTHANDLER": "1"}
    return lw.clean() | {name: str(value) for name, value in own.items()} | python | extra


@contextlib.contextmanager
def started(place: Place, *arguments: str | Path, **extra: str) -> Iterator[subprocess.Popen[str]]:
    """Start `python -m build ARGUMENTS` over the miniature, in a session of its own."""
    command = [sys.executable, "-m", "build", *arguments]
    process = subprocess.Popen(
        command,
        env=environment(place, extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        cwd="/",
    )
    try:
        yield process
    finally:
        _end(place, process)


def _end(place: Place, process: subprocess.Popen[str]) -> None:
    """End a build that a test leaves running: asked first, since its compilers are in sessions of their own."""
    running = process.poll() is None
    if running:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=TIMEOUT / 4)
        place.go.touch()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=TIMEOUT)
    assert not running or place.compilers() == [], "the build has left compilers behind"


def finish(process: subprocess.Popen[str]) -> str:
    """Return the output of a process that is about to end; one that hangs shows where."""
    try:
        return process.communicate(timeout=TIMEOUT / 2)[0]
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        raise AssertionError(process.communicate(timeout=TIMEOUT)[0]) from None


def build_arguments(place: Place) -> list[str | Path]:
    return ["build", lt.VERSION, "--source", place.tree, "--dist", place.dist]


def command(place: Place, *arguments: str | Path, **extra: str) -> tuple[int, str]:
    """Run a command over the miniature to its end; return exit status and output."""
    return forked.run([str(argument) for argument in arguments], environment(place, extra), TIMEOUT)


def build(place: Place, **extra: str) -> tuple[int, str]:
    return command(place, *build_arguments(place), **extra)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Wait until `path` is there, which `process` is to bring about."""
    end = time.monotonic() + TIMEOUT
    while not path.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.02)
