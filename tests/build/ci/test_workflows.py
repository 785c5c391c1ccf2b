"""The commands of the workflows, run as their service runs them; the cheap jobs here, all by `nox -s workflows`."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from build.errors import ProbeError, ReleaseDataError, UsageError
from build.paths import REPO
from ci import matrix, workflows
from ci.workflows import Place, evaluate, load, order, run_job
from tests.build.sources.trees import git

LITTLE = """
on: push
jobs:
  first:
    runs-on: x
    outputs:
      rows: ${{ steps.made.outputs.rows }}
    steps:
      - uses: actions/checkout@v4
      - id: made
        run: echo 'rows={"include":[{"word":"left"},{"word":"right"}]}' >> "$GITHUB_OUTPUT"
      - run: echo "LATER=yes" >> "$GITHUB_ENV"
      - run: test "$LATER" = yes && test -z "${FROM_THE_SHELL:-}" && test "$(cat file)" = committed
  second:
    needs: first
    runs-on: x
    strategy:
      matrix: ${{ fromJSON(needs.first.outputs.rows) }}
    env:
      WORD: ${{ matrix.word }}
    steps:
      - run: mkdir out && echo "$WORD" > out/word
      - uses: actions/upload-artifact@v4
        with: {name: "words-${{ matrix.word }}", path: out}
  third:
    needs: second
    runs-on: x
    steps:
      - uses: actions/download-artifact@v4
        with: {pattern: words-*, path: in}
      - run: cat in/*/word | grep right
      - run: "false | true"
"""


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    (folder / workflows.WORKFLOWS).mkdir(parents=True)
    (folder / workflows.WORKFLOWS / "little.yml").write_text(LITTLE)
    (folder / "file").write_text("committed\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "all")
    (folder / "file").write_text("changed\n")
    return folder


def test_jobs_hand_on_what_they_make(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs, variables and artifacts; a clean clone, an empty environment, and bash that fails in a pipe."""
    monkeypatch.setenv("FROM_THE_SHELL", "seen")
    jobs, place = load(repo), Place(tmp_path / "work", repo)
    place.folder.mkdir()
    names = [job.name for job in order(jobs, ["little/third"])]
    assert names == ["little/first", "little/second", "little/third"]
    run_job(jobs["little/first"], place, {})
    run_job(jobs["little/second"], place, {"word": "right"})
    with pytest.raises(UsageError, match="no row of little/second"):
        run_job(jobs["little/second"], place, {"word": "up"})
    with pytest.raises(ProbeError, match="little/third: step 3 failed with status 1"):
        run_job(jobs["little/third"], place, {})


def test_variables_for_all_steps_and_sudo_where_root_has_none(repo: Path, tmp_path: Path) -> None:
    if os.geteuid() and not shutil.which("sudo"):
        pytest.skip("needs root or sudo")
    text = 'jobs:\n  only:\n    runs-on: here\n    steps:\n      - run: test "$(sudo echo $WORD)" = given\n'
    (repo / workflows.WORKFLOWS / "little.yml").write_text(text)
    place = Place(tmp_path / "work", repo, variables={"WORD": "given"})
    place.folder.mkdir()
    run_job(load(repo)["little/only"], place, {})
    with pytest.raises(ProbeError, match="step 1 failed"):
        run_job(load(repo)["little/only"], replace(place, folder=tmp_path, variables={"WORD": "another"}), {})


def test_what_is_not_understood_is_said(repo: Path, tmp_path: Path) -> None:
    with pytest.raises(ReleaseDataError, match="is not understood here"):
        evaluate("${{ github.ref == 'main' }}", {"github": {"ref": "main"}})
    with pytest.raises(ReleaseDataError, match="no 'word'"):
        evaluate("${{ matrix.word }}", {"matrix": {}})
    with pytest.raises(UsageError, match="no job little/fourth"):
        order(load(repo), ["little/fourth"])
    path = repo / workflows.WORKFLOWS / "little.yml"
    path.write_text(LITTLE.replace("actions/checkout@v4", "some/action@v1"))
    place = Place(tmp_path / "work", repo)
    place.folder.mkdir()
    with pytest.raises(ReleaseDataError, match="some/action@v1 is not known"):
        run_job(load(repo)["little/first"], place, {})


def test_the_matrix_job_in_a_clean_clone(tmp_path: Path) -> None:
    place = Place(tmp_path, REPO)
    run_job(load()["wheels/matrix"], place, {})
    made = json.loads(place.outputs["wheels/matrix"]["matrix"])
    assert made == {"include": matrix.rows()}
    assert workflows.rows(load()["wheels/build"], _needing(place)) == made["include"]


def _needing(place: Place) -> dict[str, object]:
    return {"needs": {"matrix": {"outputs": place.outputs["wheels/matrix"]}}}


def test_jobs_are_bounded_and_know_their_rights() -> None:
    """What a hung job or a stolen token may do is small."""
    for path in (REPO / workflows.WORKFLOWS).glob("*.yml"):
        data = yaml.safe_load(path.read_text())
        assert "permissions" in data, path
        for name, job in data["jobs"].items():
            assert 0 < job["timeout-minutes"] <= 300, name
            for step in job["steps"]:
                # What an expression inserts into a script could be code of a stranger's: it goes through env.
                assert "${{" not in step.get("run", ""), name
                assert "@" in step.get("uses", "@"), name


def test_what_a_job_pushes_does_not_reach_this_repository(repo: Path, tmp_path: Path) -> None:
    text = "jobs:\n  only:\n    runs-on: here\n    steps:\n      - run: git push -q origin HEAD:refs/heads/port/new\n"
    (repo / workflows.WORKFLOWS / "little.yml").write_text(text)
    place = Place(tmp_path / "work", repo)
    place.folder.mkdir()
    run_job(load(repo)["little/only"], place, {})
    assert git(place.origin, "branch", "--list", "--format=%(refname:short)", "port/*") == "port/new"
    assert git(repo, "branch", "--list", "port/*") == ""
