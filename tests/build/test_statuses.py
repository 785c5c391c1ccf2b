"""Exit statuses of nox: the tooling's own exit status, through `nox -s` and through `python3 noxfile.py -s` alike."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from build.paths import REPO
from tests.build.series.repos import commit, make_patch, make_repo, numbered
from tests.build.with_nox import PYTHON

pytestmark = pytest.mark.usefixtures("nox_is_here")

_TIMEOUT = 120.0
#: Sessions that end as their names say; `lost` is one whose command is not the tooling's.
_NOXFILE = f"""
import sys
sys.path.insert(0, {str(REPO)!r})
import nox
from build.bootstrap import status_of_tooling

def ends(status):
    @nox.session(name=f"ends-{{status}}", venv_backend="none")
    def session(session):
        with status_of_tooling():
            session.run(sys.executable, "-c", f"import os, sys; {{status}} or sys.exit(); os._exit({{status}} % 256) "
                        f"if {{status}} > 0 else os.kill(os.getpid(), 9)", external=True)

for status in (0, 6, 8, 20, 21, -9):
    ends(status)

@nox.session(venv_backend="none")
def lost(session):
    session.run(sys.executable, "-c", "import sys; sys.exit(3)", external=True)

@nox.session(venv_backend="none")
def interrupted(session):
    raise KeyboardInterrupt

if __name__ == "__main__":
    nox.main()
"""
WAYS = {"nox": ["-m", "nox", "-f", "noxfile.py"], "python": ["noxfile.py"]}


def ends_with(folder: Path, way: str, *arguments: str) -> tuple[int, str]:
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [PYTHON, *WAYS[way], *arguments],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("way", "sessions", "status"),
    [
        ("nox", ["ends-0"], 0),
        ("nox", ["ends-20"], 20),
        ("python", ["ends-8", "ends-0"], 8),
        ("nox", ["ends-0", "ends-6", "ends-20"], 6),
        ("python", ["ends-21", "ends-20"], 21),
        ("nox", ["lost", "ends-0"], 1),
        ("nox", ["ends--9"], 1),
        ("python", ["interrupted", "ends-20"], 130),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else str(value),
)
def test_sessions(way: str, sessions: list[str], status: int, tmp_path: Path) -> None:
    (tmp_path / "noxfile.py").write_text(_NOXFILE)
    assert ends_with(tmp_path, way, "-s", *sessions)[0] == status


@pytest.mark.parametrize(
    "way", ["nox", pytest.param("python", marks=pytest.mark.nightly("test_sessions in both ways, and this one in one"))]
)
def test_the_real_noxfile(way: str, tmp_path: Path) -> None:
    """A port that needs a human, one that is finished, and one of a malformed patch."""
    git = make_repo(tmp_path / "repo", {"a.c": numbered(40)})
    (tmp_path / "patches").mkdir()
    patch = tmp_path / "patches" / "fix.patch"
    patch.write_bytes(make_patch(git, {"a.c": numbered(40, l20="mine\n")}))
    commit(git, {"a.c": numbered(40, l20="theirs\n")}, "upstream")
    trees = ["--patches", str(patch.parent), "--from-tree", f"{git.folder}@base", "--out", str(tmp_path / "out")]
    # The session's environment is this one: nothing is installed.
    session = ["--no-venv", "--no-install", "-s", "regenerate-patch", "--", *trees, "--to-tree"]
    assert ends_with(REPO, way, *session, f"{git.folder}@main")[0] == 20
    shutil.rmtree(tmp_path / "out.port")
    assert ends_with(REPO, way, *session, f"{git.folder}@base")[0] == 0
    patch.write_bytes(b"no patch\n")
    assert ends_with(REPO, way, *session, f"{git.folder}@base")[0] == 8
