"""The weekly job: an index and an upstream repository that gain a release while the test looks on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci.new_release import new
from tests.build.ci import little_project as lp
from tests.build.ci.little_project import NEXT, Project
from tests.build.official.server import Index, serving
from tests.build.overlay.little import Little
from tests.build.sources.trees import git

HEAD = f"port/little-{NEXT}"


@pytest.fixture
def project(little: Little, tmp_path: Path) -> Iterator[Project]:
    with serving(Index()) as index:
        yield lp.make(little, tmp_path, index)


def test_what_is_new() -> None:
    offered = ("2.5.0", "2.6.0", "2.10.0", "2.9.0", "2.11.0rc1", "2.9.0.post1")
    assert new(offered, ["2.6.0", "2.2.1"]) == ["2.9.0", "2.9.0.post1", "2.10.0"]
    assert new(offered, ["2.11.0"]) == []


def test_a_release_appears_and_becomes_a_pull_request(project: Project) -> None:
    status, said = project.run()
    assert (status, project.asked()) == (0, []), said
    assert "new on the index: nothing" in said
    project.publish(lambda text: "// a line of the new release\n" + text)
    status, said = project.run()
    assert status == 0, said
    assert "opened https://forge.invalid/pull/1" in said
    assert project.branches() == {"main", HEAD}
    asked = project.asked()
    assert asked[:2] == ["pr", "create"]
    assert "--draft" not in asked, said
    assert asked[asked.index("--title") + 1] == f"little: PyTorch {NEXT}"
    assert Path(f"{project.said}.others").read_text() == f"workflow run checks.yml --ref {HEAD}\n"
    body = Path(f"{project.said}.body").read_text()
    assert "all probes did as wanted" in body
    assert "| answer | answer | defect | ok |" in body
    _look_at_the_branch(project)
    assert git(project.clone, "status", "--porcelain") == ""
    project.said.unlink()
    status, said = project.run()
    assert (status, project.asked()) == (0, []), said
    assert f"the branch {HEAD} exists already" in said


def _look_at_the_branch(project: Project) -> None:
    changed = git(project.origin, "diff", "--name-only", "main", HEAD).split()
    folder = f"patches/little/{NEXT}"
    files = [f"{folder}/0001-answer.patch", f"{folder}/PORT.md", f"{folder}/port.json"]
    assert changed == ["build/releases.toml", *files, "patches/little/manifest.toml"]
    assert git(project.origin, "rev-parse", f"{HEAD}^") == git(project.origin, "rev-parse", "main")
    probes = json.loads(git(project.origin, "show", f"{HEAD}:{files[2]}"))["probes"]
    assert [(probe["stock"], probe["patched"]) for probe in probes] == [("defect", "ok")]


def test_a_port_that_needs_a_human_is_a_draft_and_a_refused_one_leaves_no_branch(project: Project) -> None:
    project.publish(lambda text: text.replace("return 1 + Secret::value();", "return Secret::value(1);"))
    refuse = Path(f"{project.said}.refuse")
    refuse.touch()
    status, said = project.run()
    assert status == 5, said
    assert "HTTP 403: not allowed" in said
    assert project.branches() == {"main"}
    refuse.unlink()
    status, said = project.run()
    assert status == 0, said
    assert "--draft" in project.asked()
    assert f"little: PyTorch {NEXT} (needs a human)" in project.asked()
    assert "conflict" in Path(f"{project.said}.body").read_text()
    assert project.branches() == {"main", HEAD}


def test_a_port_without_a_report_opens_nothing(project: Project) -> None:
    """Upstream's tag is another commit than the one that the wheel names."""
    project.publish(lambda text: text)
    git(project.upstream, "commit", "-q", "--allow-empty", "-m", "moved")
    git(project.upstream, "tag", "-f", f"v{NEXT}")
    status, said = project.run()
    assert status == 6, said
    assert "is not the pinned commit" in said
    assert "without a report" in said
    assert (project.asked(), project.branches()) == ([], {"main"})
    assert git(project.clone, "status", "--porcelain") == ""
