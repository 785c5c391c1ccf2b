"""Turn patches into commits whose ids depend on the patches alone."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from build.errors import PatchError
from build.git import Git
from build.series.fields import is_mail
from build.series.model import PatchFile

#: Committer of every commit, and author of those whose patch names none: fixed, so that ids are reproducible.
NAME = "multiworld"
EMAIL = "patches@multiworld.invalid"
DATE = "2000-01-01T00:00:00+0000"


@dataclass(frozen=True, slots=True)
class Message:
    """Who wrote a commit, when, and its message as bytes."""

    author: str
    email: str
    date: str
    text: bytes


def message_of(git: Git, patch: PatchFile) -> Message:
    """Return the commit message a patch carries; a patch without mail header gets its description."""
    if not is_mail(patch.data):
        text = git.out("stripspace", stdin=patch.header or patch.name.encode())
        return Message(NAME, EMAIL, DATE, text or patch.name.encode() + b"\n")
    with tempfile.TemporaryDirectory(prefix="multiworld-") as folder:
        body = Path(folder, "message")
        # -b keeps "[c10d]" in a subject and takes only "[PATCH]" away, so that exporting gives it back.
        info = git.out("mailinfo", "-b", "--no-scissors", str(body), str(Path(folder, "diff")), stdin=patch.data)
        head = dict(_header_line(line) for line in info.split(b"\n") if b": " in line)
        text = git.out("stripspace", stdin=head.get("Subject", b"") + b"\n\n" + body.read_bytes())
    missing = [name for name in ("Author", "Email", "Date", "Subject") if not head.get(name)]
    if missing:
        raise PatchError(
            f"{patch.name}: the mail header lacks {', '.join(missing)}",
            remedy="write it as git format-patch does",
        )
    return Message(os.fsdecode(head["Author"]), os.fsdecode(head["Email"]), head["Date"].decode(), text)


def _header_line(line: bytes) -> tuple[str, bytes]:
    """Split one `Name: value` of `git mailinfo`."""
    name, _, value = line.partition(b": ")
    return name.decode("ascii", "replace"), value


def commit_tree(git: Git, tree: str, parent: str, message: Message) -> str:
    """Commit `tree` on `parent` and return the commit's id."""
    env = {
        "GIT_AUTHOR_NAME": message.author,
        "GIT_AUTHOR_EMAIL": message.email,
        "GIT_AUTHOR_DATE": message.date,
        "GIT_COMMITTER_NAME": NAME,
        "GIT_COMMITTER_EMAIL": EMAIL,
        "GIT_COMMITTER_DATE": message.date,
    }
    return git.line("commit-tree", tree, "-p", parent, "-F", "-", stdin=message.text, env=env)
