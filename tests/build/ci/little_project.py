"""This project over a PyTorch in miniature: a clone of its own, whose index and upstream gain a release."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from build.paths import REPO
from build.seals import sha256_of
from tests.build.cluster.hosts import offer_named
from tests.build.official.server import Index
from tests.build.overlay import little as lt
from tests.build.overlay.little import Little
from tests.build.pipeline import little_release as lr
from tests.build.sources.trees import git
from tests.build.wheels import little_wheel as lw

NEXT = "9.9.1"
#: The symbol by which the ABI of a wheel is recognised, and that the miniature's libraries do not need.
_ABI = b"\0_ZN3c105ErrorC1ENSt7__cxx1112basic_stringIcE\0"
#: What proves wheels in miniature, in place of the probes: the patched answer is 99 more than stock's.
_PROBES = """
import pathlib, subprocess, sys
python, expect, junit = (sys.argv[sys.argv.index(name) + 1] for name in ("--python", "--expect", "--junit"))
code = "import torch; print(torch.answer())"
answer = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
got = {"41": "defect", "140": "ok"}.get(answer, answer)
good = got == {"stock": "defect", "patched": "ok"}[expect]
rows = {"probe": "answer", "patch": "answer", "expected": "ok" if expect == "patched" else "defect", "got": got}
properties = "".join(f'<property name="{name}" value="{value}"/>' for name, value in rows.items())
case = f'<testcase classname="probe" name="answer"><properties>{properties}</properties>'
pathlib.Path(junit).write_text(f"<testsuite>{case}{'' if good else '<failure/>'}</testcase></testsuite>")
sys.exit(not good)
"""
_TEST = """
import os, pathlib
def test_there():
    assert pathlib.Path(os.environ["MULTIWORLD_TORCH_PYTHON"]).exists()
"""
#: Stands in the place of the forge's client: a program that keeps what it was asked for.
_GH = """#!/bin/sh
[ "$1" = pr ] || {{ echo "$@" >> '{said}.others'; exit; }}
printf '%s\\n' "$@" > '{said}.new'
cat > '{said}.body'
mv '{said}.new' '{said}'
[ ! -e '{said}.refuse' ] || {{ echo 'HTTP 403: not allowed' >&2; exit 1; }}
echo https://forge.invalid/pull/1
"""


@dataclass(frozen=True, slots=True)
class Project:
    """The clone in which the job runs, its remote, and what the world around offers."""

    top: Path
    little: Little
    index: Index

    @property
    def clone(self) -> Path:
        return self.top / "clone"

    @property
    def origin(self) -> Path:
        return self.top / "origin.git"

    @property
    def upstream(self) -> Path:
        return self.top / "upstream"

    @property
    def said(self) -> Path:
        return self.top / "gh.said"

    def asked(self) -> list[str]:
        """The arguments of the last call of the forge's client; none if it was not called."""
        return self.said.read_text().splitlines() if self.said.exists() else []

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run the weekly job in the clone."""
        environment = lw.clean() | {
            "PATH": f"{self.top / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(self.clone),
            "PIP_NO_INDEX": "",
            "PIP_INDEX_URL": f"{self.index.url}/simple",
            "UV_DEFAULT_INDEX": f"{self.index.url}/simple",
            "UV_OFFLINE": "0",
            "UV_CACHE_DIR": str(self.top / "uv"),
            "NO_PROXY": "127.0.0.1",
            "MULTIWORLD_CACHE": str(self.top / "cache"),
            "MULTIWORLD_UPSTREAM": self.upstream.as_uri(),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "TMPDIR": str(self.top / "tmp"),
        }
        environment = {name: value for name, value in environment.items() if value}
        done = subprocess.run(
            [sys.executable, "-m", "ci.new_release", "--series", "little", *arguments],
            cwd=self.clone,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def branches(self) -> set[str]:
        return set(git(self.origin, "for-each-ref", "--format=%(refname:short)", "refs/heads").split())

    def publish(self, edit: Callable[[str], str]) -> None:
        """Tag the next release upstream, with one file edited, and put its wheel onto the index."""
        source = self.upstream / lt.NCCL_CPP
        source.write_text(edit(source.read_text()))
        git(self.upstream, "add", "-A")
        git(self.upstream, "commit", "-q", "--allow-empty", "-m", NEXT)
        git(self.upstream, "tag", f"v{NEXT}")
        path = _wheel(self.little, self.top, NEXT, git(self.upstream, "rev-parse", "HEAD"))
        self.index.add(path.name, path.read_bytes())


def _wheel(little: Little, folder: Path, version: str, commit: str) -> Path:
    """Write the official wheel of one release of the miniature."""
    facts = f"__version__ = '{version}+cu124'\ncuda = '12.4'\ngit_version = '{commit}'\n"
    content = {name.replace(lt.VERSION, version): data for name, data in lw.members(little).items()}
    content["torch/version.py"] = facts.encode()
    content["torch/share/cmake/Torch/TorchConfig.cmake"] = b"set_property(TARGET torch PROPERTY CXX_STANDARD 17)\n"
    content["torch/lib/libc10.so"] += _ABI
    metadata = f"torch-{version}.dist-info/METADATA"
    named = content[metadata].replace(lt.VERSION.encode(), version.encode())
    content[metadata] = named.replace(b"\n\n", b"\nRequires-Dist: nvidia-nccl-cu12==2.0\n\n", 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lw, "INFO", f"torch-{version}.dist-info")
        return lw.write_wheel(folder / lw.NAME.replace(lt.VERSION, version), content)


def make(little: Little, top: Path, index: Index) -> Project:
    """Lay out upstream, index and the project's remote, with the release that the project knows."""
    project = Project(top, little, index)
    (top / "tmp").mkdir()
    (top / "bin").mkdir()
    gh = top / "bin" / "gh"
    gh.write_text(_GH.format(said=project.said))
    gh.chmod(0o755)
    shutil.copytree(little.tree, project.upstream)
    git(project.upstream, "init", "-q", "-b", "main")
    git(project.upstream, "add", "-A")
    git(project.upstream, "commit", "-q", "-m", lt.VERSION)
    git(project.upstream, "tag", f"v{lt.VERSION}")
    git(project.upstream, "config", "uploadpack.allowFilter", "true")
    commit = git(project.upstream, "rev-parse", "HEAD")
    wheel = _wheel(little, top, lt.VERSION, commit)
    index.add(wheel.name, wheel.read_bytes())
    for name, version in (("numpy", "2.0"), ("nvidia-nccl-cu12", "2.0")):
        offer_named(index, name, version, top)
    _write_project(project, commit, sha256_of(wheel))
    return project


def _write_project(project: Project, commit: str, digest: str) -> None:
    work = project.clone
    for name in ("build", "ci", "multiworld"):  # with what is compiled of them, which git ignores
        shutil.copytree(REPO / name, work / name, ignore=shutil.ignore_patterns("*.so", "*.pyc.*"))
    for name in (".gitignore", "LICENSE"):
        shutil.copy(REPO / name, work)
    place = lr.Place(project.top)  # writes <top>/patches/little
    (project.top / "tree").symlink_to(project.upstream)
    lr.write_patch(place, "return 100 +")
    shutil.move(str(project.top / "patches"), work / "patches")
    (work / "patches" / "little" / "manifest.toml").write_text(lr.MANIFEST.replace("a" * 40, commit))
    wheel = msgspec.structs.replace(project.little.release.wheel, sha256={lt.PYTHON: digest})
    release = msgspec.structs.replace(project.little.release, wheel=wheel, commit=commit)
    entry = {key: value for key, value in msgspec.to_builtins(release).items() if value is not None}
    (work / "build" / "releases.toml").write_bytes(msgspec.toml.encode({"release": {lt.VERSION: entry}}))
    lt.write(work, {"gpuless/__init__.py": "", "gpuless/__main__.py": _PROBES})
    lt.write(work, {f"tests/{name}/test_{name}.py": _TEST for name in ("wheel", "gpuless")})
    git(work, "init", "-q", "-b", "main")
    git(work, "add", "-A")
    git(work, "commit", "-q", "-m", "project")
    git(project.top, "clone", "-q", "--bare", str(work), str(project.origin))
    git(work, "remote", "add", "origin", str(project.origin))
