"""Apply the change of a binary file, which git alone can decode."""

from __future__ import annotations

import tempfile
from pathlib import Path

from build.git import Git
from build.series.model import ChangeKind, FileChange


def binary_content(change: FileChange, base: bytes | None) -> bytes | None:
    """Return the content that a binary change makes of `base` (None: no file).

    git decodes the change, and refuses a `base` whose blob id is not the one in the patch. The result is None when it
    does not apply, or the patch has no content (`Binary files differ`).
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
        # GIT_DIR keeps git from using the index of a repository above this folder.
        done = Git(Path(folder)).call("apply", "--binary", "-", stdin=patch, env={"GIT_DIR": folder})
        return file.read_bytes() if done.returncode == 0 and file.is_file() else None
