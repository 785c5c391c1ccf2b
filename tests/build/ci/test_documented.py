"""Every command that README, CONTRIBUTING and the manual show is one that a workflow runs in a clean clone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import multiworld
from build.paths import REPO
from ci.fresh import readme

PAGES = [
    REPO / "README.md",
    REPO / "CONTRIBUTING.md",
    *sorted((REPO / "docs").glob("*.md")),
    *sorted((REPO / "patches").glob("*/*.md")),
]
WORKFLOWS = sorted((REPO / ".github" / "workflows").glob("*.yml"))
#: A line of code that is a command, and a command within a sentence, which names more than a program.
_LINE = re.compile(r"^    (?:\$ )?((?:python3?|nox|pip|uv|pytest|multiworld|torchrun|openssl|ci/\S+|git) .+)$", re.M)
_WITHIN = re.compile(r"`((?:nox -|python3? (?:noxfile\.py |-m [^`\s]+ |tools/)|multiworld |pip install )[^`]*)`")
#: Commands that no workflow can run, and the reason; before a last `…`, the words that they begin with.
NOT_RUN = {
    "ci/install …": "needs hosts: tests/build/cluster runs it on its own",
    "git clone <this repository> …": "every workflow begins with it",
    "nox -s wheelhouse -- --mirror": "downloads 3 GB: tests/build/wheelhouse/test_mirror.py makes a small one",
    "nox -s wheelhouse -- --sigstore": "needs the identity of a job that may sign",
    "nox -s verify -- dist/wheelhouse --identity …": "the job that signs names itself",
    "nox -s build-2.6.0 -- --full …": "needs the CUDA toolkit and hours; --plan runs",
    "nox -s regenerate-patch -- …": "needs a person or the trees of a user: tests/build/porting makes both",
    "python -m multiworld.switchml …": "needs the client library of SwitchML",
    "torchrun …": "needs the client library of SwitchML",
    "pip install multiworld": "pymultiworld, which is not this project's",
}


def documented() -> list[str]:
    """Return all commands, each once, without comments."""
    found: list[str] = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        found += [re.split(r"\s+# ", line)[0].rstrip() for line in _LINE.findall(text)]
        found += [" ".join(command.split()) for command in _WITHIN.findall(text)]
    return list(dict.fromkeys(found))


def pattern(command: str) -> re.Pattern[str]:
    """Return what runs a command: placeholders (PATH, 1.7.1=PATH, <yours>) are any words, `[--option]` is left out."""
    text = re.sub(r"^nox ", "python3 noxfile.py ", re.sub(r" \[.*\]", "", command))
    words = re.sub(r"RELEASE|<\w+>|(?<=[ =])[A-Z/]{2,}(?= |$)", "PLACEHOLDER", " ".join(text.split()))
    return re.compile(re.escape(words).replace("PLACEHOLDER", r"\S+") + r"(?: \|\| .*| &)?")


def steps(workflow: Path) -> list[str]:
    """Return the scripts of all steps of a workflow."""
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"].values()
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


def run_by_workflows() -> list[str]:
    """Return the lines of all steps of all workflows, and those of README that `nox -s fresh` runs."""
    scripts = [script for path in WORKFLOWS for script in steps(path)]
    whole = [line.strip() for script in scripts for line in script.replace("\\\n", " ").splitlines()]
    lines = [
        re.sub(r"^(sudo (env \S+ )?|timeout \d+ )", "", part) for line in whole for part in (line, *line.split(" && "))
    ]
    return lines + (readme((REPO / "README.md").read_text())[1] if any("-s fresh" in line for line in lines) else [])


def stands_for(entry: str, command: str) -> bool:
    """Tell if an entry of `NOT_RUN` stands for a command."""
    return command == entry or (entry.endswith(" …") and f"{command} ".startswith(entry[:-1]))


def test_every_documented_command_is_run() -> None:
    lines = run_by_workflows()
    commands = documented()
    assert len(commands) > 60
    missing = [item for item in commands if not any(pattern(item).fullmatch(line) for line in lines)]
    assert [item for item in missing if not any(stands_for(entry, item) for entry in NOT_RUN)] == []


def test_no_reason_is_left_over() -> None:
    commands = documented()
    assert [entry for entry in NOT_RUN if not any(stands_for(entry, item) for item in commands)] == []


@pytest.mark.parametrize("command", ["nox -s no-such-session", "multiworld dance --wildly"])
def test_a_command_that_nothing_runs_is_found(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"Do this:\n\n    {command}      # now\n")
    monkeypatch.setattr("tests.build.ci.test_documented.PAGES", [*PAGES, page])
    with pytest.raises(AssertionError, match=command):
        test_every_documented_command_is_run()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_jobs_are_bounded_and_know_their_rights(path: Path) -> None:
    """A hung job or a stolen token can do little."""
    data = yaml.safe_load(path.read_text())
    assert "permissions" in data
    for name, job in data["jobs"].items():
        assert 0 < job["timeout-minutes"] <= 300, name
        # An expression inserted into a script could be code of a stranger: it goes through env.
        assert not [step for step in job["steps"] if "${{" in step.get("run", "")], name
        assert all("@" in step.get("uses", "@") for step in job["steps"]), name


def test_the_reference_has_every_public_name() -> None:
    shown = re.findall(r"^\.\. auto\w+:: multiworld\.(\w+)$", (REPO / "docs" / "reference.md").read_text(), re.M)
    assert sorted(shown) == sorted(set(multiworld.__all__) - {"__version__"})
