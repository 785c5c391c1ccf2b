"""The content a patch carries whole: new files, deleted files, binary files, submodules."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from build.git import Git
from build.series.model import GITLINK, ChangeKind, FileChange

_COMMIT = re.compile(rb"Subproject commit ([0-9a-f]{40})")


def added_content(change: FileChange) -> bytes:
    """Return the content of the new file a text change makes."""
    return b"".join(line for hunk in change.hunks for line in hunk.new)


def deleted_content(change: FileChange) -> bytes:
    """Return the content of the file a text change deletes."""
    return b"".join(line for hunk in change.hunks for line in hunk.old)


def submodule_commits(change: FileChange) -> tuple[bytes, bytes] | None:
    """Return the commits of a submodule before and after (empty for none), None if it is about something else."""
    if GITLINK not in {change.old_mode, change.new_mode}:
        return None
    sides = []
    for lines in (deleted_content(change), added_content(change)):
        match = _COMMIT.search(lines)
        sides.append(match[1] if match else b"")
    return sides[0], sides[1]


def binary_content(change: FileChange, base: bytes | None) -> bytes | None:
    """Return what a binary change makes of `base` (None: no file).

    git decodes it, and refuses a `base` whose blob id is not the one that the patch names.

    Returns:
        None when it does not apply, or the patch carries no content (`Binary files differ`).
    """
    if not change.binary:
        return None
    added = change.kind is ChangeKind.ADDED
    head = f"diff --git a/f b/f\n{'new file mode 100644' + chr(10) if added else ''}"
    index = f"index {change.old_blob}..{change.new_blob}{'' if added else ' 100644'}\n"
    with tempfile.TemporaryDirectory(prefix="multiworld-binary-") as folder:
        file = Path(folder, "f")
        if base is not None:
            file.write_bytes(base)
        patch = (head + index).encode() + change.binary
        # GIT_DIR keeps git from finding a repository above, whose index would then count.
        done = Git(Path(folder)).call("apply", "--binary", "-", stdin=patch, env={"GIT_DIR": folder})
        return file.read_bytes() if done.returncode == 0 and file.is_file() else None
