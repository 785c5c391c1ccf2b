"""The weekly job as its workflow runs it: from noxfile, in a clean clone, while the index gains a release."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from build.official import pip_session
from build.paths import REPO
from tests.build import with_nox
from tests.build.ci import little_project as lp
from tests.build.ci.little_project import NEXT, Project
from tests.build.ci.test_documented import steps
from tests.build.official.server import Index, serving
from tests.build.overlay.little import Little
from tests.build.sources.trees import git


@pytest.fixture
def project(little: Little, tmp_path: Path) -> Iterator[Project]:
    """The project in miniature with this one's sessions, locks and workflows; its series has the job's name for it."""
    with serving(Index()) as index:
        made = lp.make(little, tmp_path, index)
        for name in ("locks", ".github"):
            shutil.copytree(REPO / name, made.clone / name)
        for name in ("noxfile.py", "pyproject.toml", "README.md"):
            shutil.copy(REPO / name, made.clone)
        (made.clone / "patches" / "little").rename(made.clone / "patches" / "nccl")
        for name in ("patches/nccl/manifest.toml", "build/releases.toml"):
            path = made.clone / name
            path.write_text(path.read_text().replace('"little"', '"nccl"'))
        git(made.clone, "add", "-A")
        git(made.clone, "commit", "-q", "-m", "sessions")
        git(made.clone, "push", "-q", "origin", "main")
        # With nox, where there is one: what noxfile.py does without it is `test_bootstrap`'s.
        (tmp_path / "bin" / "python3").write_text(f'#!/bin/sh\nexec "{with_nox.PYTHON}" "$@"\n')
        (tmp_path / "bin" / "python3").chmod(0o755)
        yield made


def run_job(project: Project, variables: dict[str, str]) -> None:
    """Run the commands of the workflow in a clean clone, with home and these variables alone."""
    folder = project.top / "job"
    git(project.top, "clone", "-q", str(project.origin), str(folder))
    commands = "\n".join(steps(folder / ".github" / "workflows" / "new-release.yml"))
    environment = {"HOME": os.environ["HOME"], "CI": "true", **variables}
    subprocess.run(["bash", "-eo", "pipefail", "-c", commands], cwd=folder, env=environment, timeout=280, check=True)


_PORTED = "test_a_release_appears_and_becomes_a_pull_request, and this job where there is none"


@pytest.mark.parametrize(
    "appears", [False, pytest.param(True, marks=pytest.mark.nightly(_PORTED))], ids=["nothing new", "a release"]
)
def test_the_job_as_the_workflow_runs_it(project: Project, tmp_path: Path, appears: bool) -> None:
    tools = pip_session.collector().search_scope.index_urls  # before the job has an index of its own
    variables = {
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PIP_INDEX_URL": f"{project.index.url}/simple",
        "PIP_EXTRA_INDEX_URL": " ".join(tools),
        "NO_PROXY": "127.0.0.1",
        "MULTIWORLD_CACHE": str(tmp_path / "cache"),
        "MULTIWORLD_UPSTREAM": project.upstream.as_uri(),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "TMPDIR": str(project.top / "tmp"),
    }
    if appears:
        project.publish(lambda text: "// a line of the new release\n" + text)
    run_job(project, variables)
    if not appears:
        assert (project.asked(), project.branches()) == ([], {"main"})
        return
    asked = project.asked()
    assert asked[asked.index("--title") + 1] == f"nccl: PyTorch {NEXT}"
    assert "--draft" not in asked
    assert project.branches() == {"main", f"port/nccl-{NEXT}"}
