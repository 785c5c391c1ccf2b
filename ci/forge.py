"""The one call to the forge: open a pull request with its own command line client, `gh`."""

from __future__ import annotations

from dataclasses import dataclass

from build.errors import EnvironmentUnfitError
from build.process import run

#: Characters that a body may have there; a report may be longer.
_LONGEST = 60_000


@dataclass(frozen=True, slots=True)
class PullRequest:
    """A pull request: the branch `head` into `base`; `draft` when a person has to do something first."""

    head: str
    base: str
    title: str
    body: str
    draft: bool = False


def open_pull_request(wanted: PullRequest) -> str:
    """Open a pull request and return its address.

    Raises:
        EnvironmentUnfitError: `gh` is not there, is not logged in, or is refused.
    """
    body = wanted.body if len(wanted.body) <= _LONGEST else wanted.body[:_LONGEST] + "\n\n(cut: the report is longer)\n"
    options = ["--head", wanted.head, "--base", wanted.base, "--title", wanted.title, "--body-file", "-"]
    command = ["gh", "pr", "create", *options, *(["--draft"] if wanted.draft else [])]
    done = run(command, stdin=body.encode(), timeout=300)
    if done.returncode:
        raise EnvironmentUnfitError(
            f"the pull request for {wanted.head} could not be opened",
            cause=done.tail,
            remedy="give the job a token that may open pull requests (GH_TOKEN), and allow it in the repository",
        )
    return done.stdout.decode().strip().rpartition("\n")[2]
