"""Run the commands of the workflows on this machine: `nox -s workflows -- [WORKFLOW/JOB …]`.

A job gets a clean clone of HEAD, an environment without the variables of this shell, and what its steps and the jobs
that it needs have written to GITHUB_OUTPUT and GITHUB_ENV. Of the actions, those that check out, set up Python and
carry artifacts are imitated; the ones of the service itself are named and left out. Of a matrix the first row runs.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from build.cli import guarded, run
from build.console import console, note, step
from build.errors import ProbeError, ReleaseDataError, UsageError
from build.git import Git
from build.paths import REPO
from build.process import run_shown

WORKFLOWS = Path(".github", "workflows")
#: Variables of this machine that say how the network is reached.
NETWORK = re.compile(r"(?:https?|no|all)_proxy|(?:PIP|UV|SSL)_\w+", re.IGNORECASE)
#: What else of this machine a job sees: its caches, and where programs are.
_KEPT = re.compile(rf"HOME|LANG|TERM|TMPDIR|USER|MULTIWORLD_CACHE|{NETWORK.pattern}", re.IGNORECASE)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Seconds for one step: the longest builds wheels and tests them.
_LONGEST = 3 * 3600.0
_EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
_LOOKUP = re.compile(r"[a-z]+(?:\.[\w-]+)+")
#: Actions that only the service can carry out.
_OF_THE_SERVICE = ("actions/attest-build-provenance", "actions/deploy-pages")


@dataclass(frozen=True, slots=True)
class Job:
    """One job: the name `WORKFLOW/JOB`, and its part of the file."""

    name: str
    data: Mapping[str, Any]

    @property
    def needs(self) -> list[str]:
        needs = self.data.get("needs", [])
        workflow = self.name.partition("/")[0]
        return [f"{workflow}/{need}" for need in ([needs] if isinstance(needs, str) else needs)]

    @property
    def commands(self) -> list[str]:
        return [item["run"] for item in self.data["steps"] if "run" in item]


@dataclass(slots=True)
class Place:
    """Where jobs run: a folder for clones, artifacts, what jobs have told each other, variables for all steps."""

    folder: Path
    repo: Path
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def artifacts(self) -> Path:
        return self.folder / "artifacts"

    @property
    def origin(self) -> Path:
        """Return the remote `origin` of the clones, made from the repository: what jobs push stays in it."""
        bare = self.folder / "origin.git"
        if not bare.exists():
            Git(self.repo).out("clone", "--quiet", "--bare", "--no-hardlinks", f"file://{self.repo}", str(bare))
        return bare

    @property
    def path(self) -> str:
        """Return `PATH` of the steps. The service has sudo: for root on a machine without it, it is made."""
        if shutil.which("sudo", path=_PATH) or os.geteuid():
            return _PATH
        program = self.folder / "bin" / "sudo"
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text('#!/bin/sh\nexec "$@"\n')
        program.chmod(0o755)
        return f"{program.parent}:{_PATH}"


def load(repo: Path = REPO) -> dict[str, Job]:
    """Return the jobs of all workflows by name, each after those that it needs.

    Raises:
        ReleaseDataError: a file is not YAML, or has no jobs.
    """
    found: dict[str, Job] = {}
    for path in sorted((repo / WORKFLOWS).glob("*.yml")):
        try:
            jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
        except (yaml.YAMLError, KeyError, TypeError) as error:
            raise ReleaseDataError(f"{path} is no workflow: {error}") from None
        found |= {f"{path.stem}/{name}": Job(f"{path.stem}/{name}", data) for name, data in jobs.items()}
    return found


def evaluate(text: str, context: Mapping[str, Any]) -> str:
    """Replace the expressions of a text; only names are understood, and `fromJSON` of one.

    Raises:
        ReleaseDataError: another expression, or a name without a value.
    """

    def value(match: re.Match[str]) -> str:
        inner = match[1].removeprefix("fromJSON(").removesuffix(")")
        if not _LOOKUP.fullmatch(inner):
            raise ReleaseDataError(f"the expression {match[0]} is not understood here", remedy="put it into env or if")
        found: Any = context
        for part in inner.split("."):
            if not isinstance(found, Mapping) or part not in found:
                raise ReleaseDataError(f"{match[0]} has no value", cause=f"no {part!r} in {inner}")
            found = found[part]
        return str(found)

    return _EXPRESSION.sub(value, text)


def rows(job: Job, context: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a job's matrix; one empty row without a matrix."""
    matrix = job.data.get("strategy", {}).get("matrix", {})
    if isinstance(matrix, str):
        matrix = json.loads(evaluate(matrix, context))
    listed = {key: values for key, values in matrix.items() if key not in ("include", "exclude")}
    crossed = [dict(zip(listed, choice, strict=True)) for choice in itertools.product(*listed.values())]
    return [*matrix.get("include", []), *(crossed if listed else [])] or [{}]


def run_job(job: Job, place: Place, chosen: Mapping[str, str]) -> None:
    """Run a job in a clean clone.

    Args:
        chosen: values that a matrix row must have; of the rows that have them, the first one runs.

    Raises:
        ProbeError: a step failed.
        UsageError: no row of the matrix is as chosen.
    """
    needs = {need.partition("/")[2]: {"outputs": place.outputs.get(need, {})} for need in job.needs}
    context: dict[str, Any] = {"needs": needs, "inputs": _defaults(), "github": _github(), "steps": {}}
    every = rows(job, context)
    fitting = [row for row in every if all(str(row.get(key, value)) == value for key, value in chosen.items())]
    if not fitting:
        raise UsageError(f"no row of {job.name} is as chosen", cause=str(every))
    context["matrix"] = fitting[0]
    step(f"{job.name} {' '.join(fitting[0].values())}".rstrip() + (f" (row 1 of {len(every)})" if every[1:] else ""))
    clone = place.folder / "clones" / job.name.replace("/", "-")
    Git(place.repo).out("clone", "--quiet", "--no-hardlinks", f"file://{place.origin}", str(clone))
    environment = {
        **_environment(job.data.get("env", {}), context),
        "PATH": place.path,
        **place.variables,
    }
    for number, item in enumerate(job.data["steps"], 1):
        _run_step(item, number, job, Run(clone, place, context, environment))
    declared = job.data.get("outputs", {})
    place.outputs[job.name] = {name: evaluate(text, context) for name, text in declared.items()}


@dataclass(frozen=True, slots=True)
class Run:
    """A job that runs: its clone, and what its steps share."""

    clone: Path
    place: Place
    context: dict[str, Any]
    environment: dict[str, str]


def _run_step(item: Mapping[str, Any], number: int, job: Job, here: Run) -> None:
    if "uses" in item:
        action = item["uses"].partition("@")[0]
        given = {key: evaluate(str(value), here.context) for key, value in item.get("with", {}).items()}
        if action in _OF_THE_SERVICE:
            note(f"{item['uses']}: only there; not run")
        elif action in _ACTIONS:
            _ACTIONS[action](here, given)
        else:
            raise ReleaseDataError(
                f"{job.name}: {item['uses']} is not known here", remedy="enter it in ci/workflows.py"
            )
        return
    with tempfile.TemporaryDirectory(prefix="step-", dir=here.place.folder) as scratch:
        files = {name: Path(scratch, name) for name in ("GITHUB_OUTPUT", "GITHUB_ENV", "GITHUB_STEP_SUMMARY")}
        for file in files.values():
            file.touch()
        script = Path(scratch, "run.sh")
        script.write_text(evaluate(item["run"], here.context), encoding="utf-8")
        env = {**here.environment, **_evaluated(item.get("env", {}), here.context)}
        env |= {name: str(file) for name, file in files.items()}
        command = [
            "env",
            "-i",
            *(f"{key}={value}" for key, value in env.items()),
            "bash",
            "-eo",
            "pipefail",
            str(script),
        ]
        console.print(f"$ {item['run'].strip()}", style="bold", markup=False)
        status = run_shown(command, cwd=here.clone / item.get("working-directory", "."), env={}, timeout=_LONGEST)
        if status:
            raise ProbeError(f"{job.name}: step {number} failed with status {status}", cause=item["run"].strip())
        here.environment.update(_pairs(files["GITHUB_ENV"]))
        here.context["steps"][item.get("id", f"step{number}")] = {"outputs": dict(_pairs(files["GITHUB_OUTPUT"]))}


def _pairs(file: Path) -> Iterator[tuple[str, str]]:
    for line in file.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition("=")
        yield name, value


def _evaluated(env: Mapping[str, Any], context: Mapping[str, Any]) -> dict[str, str]:
    return {name: evaluate(str(value), context) for name, value in env.items()}


def _environment(own: Mapping[str, Any], context: Mapping[str, Any]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if _KEPT.fullmatch(name)}
    return {**kept, "CI": "true", **_evaluated(own, context)}


def _github() -> dict[str, str]:
    return {"ref": "refs/heads/main", "token": os.environ.get("GH_TOKEN", "")}


def _defaults() -> dict[str, str]:
    """The inputs of a run that nobody gave inputs to."""
    return {"releases": ""}


def _upload(here: Run, given: Mapping[str, str], name: str = "") -> None:
    found = sorted(here.clone.glob(given["path"]))
    if not found:
        raise ProbeError(f"the artifact {given.get('name', name)} has no files", cause=given["path"])
    target = here.place.artifacts / (name or given["name"])
    for path in found:
        if path.is_dir():
            shutil.copytree(path, target, dirs_exist_ok=True)
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)


def _download(here: Run, given: Mapping[str, str]) -> None:
    found = sorted(here.place.artifacts.glob(given.get("pattern", "*")))
    if not found:
        raise ProbeError(f"no artifact is called {given.get('pattern', '*')}", cause="the jobs before made none")
    for path in found:
        shutil.copytree(path, here.clone / given["path"] / path.name, dirs_exist_ok=True)


def _checkout(*_: object) -> None:
    """The clone is there before the first step."""


def _python(_: Run, given: Mapping[str, str]) -> None:
    note(f"Python {' and '.join(given['python-version'].split())}: as this machine has it")


_ACTIONS: dict[str, Callable[[Run, Mapping[str, str]], None]] = {
    "actions/checkout": _checkout,
    "actions/setup-python": _python,
    "actions/upload-artifact": _upload,
    "actions/download-artifact": _download,
    "actions/upload-pages-artifact": lambda here, given: _upload(here, given, "github-pages"),
}


def order(jobs: Mapping[str, Job], wanted: list[str]) -> list[Job]:
    """Return the wanted jobs, all if none is named, and those that they need, each after what it needs.

    Raises:
        UsageError: there is no such job.
    """
    if strange := [name for name in wanted if name not in jobs]:
        raise UsageError(f"no job {', '.join(strange)}", remedy="one of: " + ", ".join(jobs))
    found: dict[str, Job] = {}

    def add(name: str) -> None:
        for need in jobs[name].needs:
            add(need)
        found.setdefault(name, jobs[name])

    for name in wanted or jobs:
        add(name)
    return list(found.values())


def workflows(
    jobs: Annotated[list[str] | None, typer.Argument(help="WORKFLOW/JOB, with what it needs; default all")] = None,
    row: Annotated[list[str] | None, typer.Option(help="KEY=VALUE of a matrix row, e.g. python=3.11")] = None,
    skip: Annotated[list[str] | None, typer.Option(help="WORKFLOW/JOB that is not run")] = None,
    env: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE for all steps, e.g. PYTEST_ADDOPTS='-k heartbeat'")
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="only print jobs and commands")] = False,
) -> None:
    """Run the commands of the workflows in clean clones of HEAD."""
    chosen = order(load(), jobs or [])
    if show:
        for job in chosen:
            step(job.name)
            for command in job.commands:
                note(command.strip())
        return
    if changed := Git(REPO).changed_files():
        note(f"not committed, so not part of the clones: {', '.join(changed[:5])}")
    with tempfile.TemporaryDirectory(prefix="workflows-") as folder:
        place = Place(Path(folder), REPO, variables=dict(item.partition("=")[::2] for item in env or ()))
        for job in chosen:
            if job.name not in (skip or ()):
                run_job(job, place, dict(item.partition("=")[::2] for item in row or ()))
    step(f"{len(chosen) - len(skip or ())} jobs ran")


def _app() -> typer.Typer:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(workflows)
    return app


if __name__ == "__main__":
    sys.exit(run(lambda: guarded(_app)))
