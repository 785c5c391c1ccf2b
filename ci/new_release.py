"""The weekly job, `python -m ci.new_release`: port the patches to each new PyTorch release and open a pull request.

A release is new when the package index has it, it is newer than all that `build/releases.toml` has, and no branch of
this job exists for it. The port, `regenerate-patch --build`, decides what kind of pull request it is: ready when all
was ported, built and probed, else a draft whose report tells what a person has to do.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from packaging.version import Version

from build import releases
from build.cli import guarded, only, run
from build.console import note, step
from build.errors import EnvironmentUnfitError, NeedsHumanError, SourceError, ToolError, UsageError
from build.git import PROJECT, Git, Settings
from build.official.facts import versions
from build.paths import REPO
from build.process import run as quietly
from build.process import run_shown
from build.series.manifest import MARKDOWN

#: Seconds for one port with its build and probes: two downloads of 1 GB each and some minutes of work.
_LONGEST = 4 * 3600.0
#: What a port changes in the repository.
_CHANGES = ("build/releases.toml", "patches")
#: Characters that the body of a pull request may have; a report may be longer.
_BODY = 60_000


def open_pull_request(head: str, base: str, title: str, body: str, *, draft: bool) -> str:
    """Open a pull request, start the checks of its branch, and return its address.

    What a job's own token opens starts no workflow by itself. The checks belong to the commit, so the pull request has
    them.

    Raises:
        EnvironmentUnfitError: `gh` is not there, is not logged in, or is refused.
    """
    body = body if len(body) <= _BODY else body[:_BODY] + "\n\n(cut: the report is longer)\n"
    options = ["--head", head, "--base", base, "--title", title, "--body-file", "-", *(["--draft"] if draft else [])]
    _gh(head, "workflow", "run", "checks.yml", "--ref", head)
    return _gh(head, "pr", "create", *options, stdin=body).strip().rpartition("\n")[2]


def _gh(head: str, *arguments: str, stdin: str = "") -> str:
    """Run the forge's own client and return what it prints."""
    done = quietly(["gh", *arguments], stdin=stdin.encode(), timeout=300)
    if done.returncode:
        what = f"the pull request for {head} could not be opened: `gh {' '.join(arguments[:2])}` failed"
        remedy = "give the job a token that may start workflows and open pull requests (GH_TOKEN)"
        raise EnvironmentUnfitError(what, cause=done.tail, remedy=remedy)
    return done.stdout.decode()


def new(offered: tuple[str, ...], known: list[str]) -> list[str]:
    """Return the final releases that are newer than all known ones, oldest first."""
    newest = max(map(Version, known))
    found = [Version(item) for item in offered if Version(item) > newest]
    return [str(item) for item in sorted(found) if not item.is_prerelease]


def branch(series: str, release: str) -> str:
    return f"port/{series}-{release}"


def port(git: Git, remote: str, base: str, series: str, release: str) -> str:
    """Port a series to a release on a branch of its own, and open a pull request; return its address.

    The checkout is as before afterwards.

    Args:
        git: the checkout, on whose HEAD the branch is based.
        remote: the remote that gets the branch.
        base: its branch that the pull request is for.

    Raises:
        SourceError: the port ended without a report.
        EnvironmentUnfitError: the branch or the pull request was refused; the remote then has neither.
    """
    head, start = branch(series, release), git.resolve("HEAD")
    step(f"PyTorch {release} is new: porting {series}")
    try:
        command = [sys.executable, "-m", "build", "regenerate-patch", release, "--series", series, "--build"]
        status = run_shown(command, cwd=REPO, env={"PYTHONPATH": str(REPO)}, timeout=_LONGEST)
        commit = _commit(git, series, release, start, status)
    finally:
        git.out("reset", "--quiet", "--hard", start)
        git.out("clean", "--quiet", "-d", "--force", "--", *_CHANGES)
    report = git.out("show", f"{commit}:patches/{series}/{release}/{MARKDOWN}").decode()
    git.transfer("push", "--progress", remote, f"{commit}:refs/heads/{head}")
    try:
        reason = "needs a human" if status == NeedsHumanError.exit_code else "not proven"
        title = f"{series}: PyTorch {release}" + (f" ({reason})" if status else "")
        return open_pull_request(head, base, title, _body(release, status, report), draft=bool(status))
    except ToolError:
        git.out("push", remote, f":refs/heads/{head}")  # or the next run would take it for done
        raise


def _commit(git: Git, series: str, release: str, parent: str, status: int) -> str:
    """Commit what the port has changed, without a branch of this checkout, and return the commit."""
    if not (git.folder / "patches" / series / release / MARKDOWN).is_file():
        what = f"the port of {series} to {release} ended with status {status} and without a report: see above"
        remedy = f"run `nox -s regenerate-patch -- {release} --series {series}` where messages can be answered"
        raise SourceError(what, remedy=remedy)
    git.out("add", "--", *_CHANGES)
    text = f"{series}: ported to PyTorch {release}\n\nBy regenerate-patch --build, which ended with status {status}.\n"
    return git.commit(git.line("write-tree"), text.encode(), parent, PROJECT)


def _body(release: str, status: int, report: str) -> str:
    if status == 0:
        said = f"All hunks found their place in PyTorch {release}; the wheels were built and all probes did as wanted."
    elif status == NeedsHumanError.exit_code:
        said = f"Hunks need a human: `nox -s regenerate-patch -- {release}` on this branch goes on from here."
    else:
        said = f"The patches are ported, but build or probes ended with status {status}: see the log of the job."
    return f"{said}\n\n{report}"


def new_release(
    series: Annotated[str, typer.Option(help="which series")] = "nccl",
    remote: Annotated[str, typer.Option(help="remote that gets the branches")] = "origin",
    base: Annotated[str, typer.Option(help="branch that the pull requests are for")] = "main",
    dry: Annotated[bool, typer.Option("--list", help="only list the new releases")] = False,
) -> None:
    """Port the patches to each new PyTorch release, and open a pull request with the report."""
    found = new(versions(), list(releases.load()))
    step(f"new on the index: {', '.join(found) or 'nothing'}")
    if dry or not found:
        return
    git = Git(Path(REPO), settings=Settings.USER)
    if changed := git.changed_files():
        raise UsageError("the checkout has changes", cause=", ".join(changed[:5]), remedy="run it in a clean clone")
    there = {row.partition("refs/heads/")[2] for row in git.out("ls-remote", "--heads", remote).decode().splitlines()}
    for release in found:
        if branch(series, release) in there:
            note(f"{release}: the branch {branch(series, release)} exists already")
        else:
            step(f"opened {port(git, remote, base, series, release)}")


if __name__ == "__main__":
    sys.exit(run(lambda: guarded(only(new_release))))
