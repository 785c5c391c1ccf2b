"""SIGKILL in the middle of each stage: what it leaves is swept when the stage runs again, and the result is whole."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from build.paths import REPO
from tests.build.porting.trees import series_on
from tests.build.series.repos import commit, make_patch, make_repo, numbered
from tests.build.sources.trees import make_remote, make_tarball, write_tree

BOUND = 60.0
#: A program that waits where one of its arguments is a given word, until `hang` is removed.
_WAITING = """\
#!/bin/sh
case " $* " in *" {word} "*)
    touch '{state}/waiting'
    while [ -e '{state}/hang' ]; do sleep 0.05; done;;
esac
{then}
"""
_ACQUIRE = """\
import os, platform
from pathlib import Path
from tests.build.sources.trees import release
from build.releases import DebianSource
from build.sources import TreePurpose, acquire
platform.freedesktop_os_release = lambda: {"ID": "debian", "VERSION_CODENAME": "trixie"}
debian = DebianSource("2.6.0+dfsg", "trixie", os.environ["DIGEST"]) if "DIGEST" in os.environ else None
need = TreePurpose.FULL if "FULL" in os.environ else TreePurpose.OVERLAY
source = Path(os.environ["SOURCE"]) if "SOURCE" in os.environ else None
tree = acquire(release(commit=os.environ.get("COMMIT", "0" * 40), debian=debian), source, need=need)
print("made", (tree.repo / "torch/csrc/cuda/nccl.cpp").is_file())
"""
_APPLY = """\
from pathlib import Path
from build import paths
from build.series.apply import apply_series
from build.series.patchfile import read
with paths.locked(Path("out/checkout"), "the checkout"):
    applied = apply_series(Path("repo"), "base", [read(Path("0001-p.patch"))], Path("out/checkout").absolute())
print("made", b"five" in (applied.checkout / "a.c").read_bytes())
"""
_PORT = """\
from pathlib import Path
from build.porting.between_trees import Request, port_folder
port_folder(Request(Path("patches"), "repo@base", "repo@new", Path("out/ported").absolute()))
print("made", Path("out/ported.port/state.json").is_file())
"""
_WRITE = """\
import os, time
from pathlib import Path
from build import paths
from build.series.commits import write_series
def waiting(new, final):
    Path("state/waiting").touch()
    while Path("state/hang").exists():
        time.sleep(0.02)
    return exchange(new, final)
exchange, paths.exchange = paths.exchange, waiting
Path("out/2.6.0").mkdir(exist_ok=True)
write_series(Path("out/2.6.0"), {"0001-p.patch": b"text"})
print("made", Path("out/2.6.0/0001-p.patch").read_bytes() == b"text")
"""


@dataclass
class Stage:
    """A program that makes something, in a folder of its own, and can be killed meanwhile."""

    top: Path
    code: str
    env: dict[str, str]

    def start(self) -> subprocess.Popen[str]:
        path = f"{self.top / 'tools'}{os.pathsep}{os.environ['PATH']}"
        known = {"PYTHONPATH": str(REPO), "MULTIWORLD_CACHE": str(self.top / "out"), "PATH": path}
        return subprocess.Popen(
            [sys.executable, "-c", self.code],
            cwd=self.top,
            env={**os.environ, "MULTIWORLD_UPSTREAM": str(self.top / "none"), **known, **self.env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def waits(self, tool: str, word: str, then: str = "") -> None:
        script = self.top / "tools" / tool
        then = then or f'exec {shutil.which(tool)} "$@"'
        script.write_text(_WAITING.format(word=word, state=self.top / "state", then=then))
        script.chmod(0o755)

    def parts(self) -> list[str]:
        """List what is half-made."""
        return sorted(
            str(path.relative_to(self.top))
            for path in (self.top / "out").rglob(".*")
            if not any(name.startswith(".git") for name in path.parts)
        )


def importing(stage: Stage) -> None:
    write_tree(stage.top / "plain")
    stage.env["SOURCE"] = "plain"
    stage.waits("git", "fast-import")


def fetching(stage: Stage) -> None:
    remote, stage.env["COMMIT"] = make_remote(stage.top)
    stage.env["MULTIWORLD_UPSTREAM"] = f"file://{remote}"
    stage.waits("git", "--stdin")


def cloning(stage: Stage) -> None:
    fetching(stage)
    stage.env["FULL"] = "1"
    stage.waits("git", "checkout")


def downloading(stage: Stage) -> None:
    tarball = make_tarball(stage.top / "t.tar.xz")
    stage.env["DIGEST"] = hashlib.sha256(tarball.read_bytes()).hexdigest()
    copy = f"cp {tarball} pytorch_2.6.0+dfsg.orig.tar.xz"
    cases = f'*indextargets*) echo "http://mirror.invalid trixie main";; *" source "*) {copy};;'
    stage.waits("apt-get", "source", f'case " $* " in {cases} esac')


def checking_out(stage: Stage) -> None:
    git = make_repo(stage.top / "repo", {"a.c": numbered(20)})
    (stage.top / "0001-p.patch").write_bytes(make_patch(git, {"a.c": numbered(20, l5="five\n")}))
    stage.code = _APPLY
    stage.waits("git", "--reset")


def porting(stage: Stage) -> None:
    git = make_repo(stage.top / "repo", {"a.c": numbered(20)})
    (stage.top / "patches").mkdir()
    (stage.top / "patches" / "1.patch").write_bytes(series_on(git, [{"a.c": numbered(20, l5="mine\n")}])[0])
    commit(git, {"a.c": numbered(20, l5="theirs\n")}, "upstream")
    git.out("tag", "new")
    stage.code = _PORT
    stage.waits("git", "init")


def writing_a_series(stage: Stage) -> None:
    stage.code = _WRITE


STAGES = [importing, fetching, cloning, downloading, checking_out, porting, writing_a_series]


@pytest.fixture(params=STAGES, ids=lambda item: item.__name__)
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    for name in ("state", "tools", "out"):
        (tmp_path / name).mkdir()
    made = Stage(tmp_path, _ACQUIRE, {})
    prepare: Callable[[Stage], None] = request.param
    prepare(made)
    (tmp_path / "state" / "hang").touch()
    yield made
    (tmp_path / "state" / "hang").unlink(missing_ok=True)


def test_what_a_killed_run_left_is_swept(stage: Stage) -> None:
    first = stage.start()
    deadline = time.monotonic() + BOUND
    while not (stage.top / "state" / "waiting").exists():
        assert first.poll() is None, first.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    first.kill()
    first.communicate(timeout=BOUND)
    assert stage.parts() != []
    (stage.top / "state" / "hang").unlink()
    said, _ = stage.start().communicate(timeout=BOUND)
    assert said.endswith("made True\n"), said
    assert stage.parts() == []
