"""Write commits as patches in the one form this project keeps, so that a changed byte is a changed patch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from build.git import Git
from build.series.checkout import replace_folder

#: Everything that decides the bytes is said here; no configuration is read (see `build.git`).
FORMAT = (
    "format-patch",
    "--stdout",
    "--zero-commit",
    "--full-index",
    "--binary",
    "--no-signature",
    "--no-numbered",
    "--find-renames=50%",
    "--unified=3",
    "--diff-algorithm=myers",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--src-prefix=a/",
    "--dst-prefix=b/",
)


@dataclass(frozen=True, slots=True)
class Exported:
    """One patch to be written: file name and bytes."""

    name: str
    data: bytes


def export_commit(git: Git, commit: str) -> bytes:
    """Return one commit as a patch.

    Args:
        git: the repository.
        commit: its id; merges give nothing.

    Returns:
        The bytes of the canonical patch file.
    """
    return git.out(*FORMAT, "--always", "-1", commit)


def export_series(git: Git, base: str, head: str, names: Iterable[str]) -> tuple[Exported, ...]:
    """Return the commits of `base..head`, oldest first, as patches called `names`.

    Raises:
        ValueError: there are more or fewer commits than names.
    """
    commits = git.line("rev-list", "--reverse", "--topo-order", f"{base}..{head}").split()
    return tuple(Exported(name, export_commit(git, commit)) for name, commit in zip(names, commits, strict=True))


def write_series(folder: Path, patches: Iterable[Exported], keep: Iterable[str] = ()) -> None:
    """Write a release's patches as one step: the folder holds the old ones or the new ones, never a mixture.

    Args:
        folder: `patches/<series>/<release>`.
        patches: all of the release's patches.
        keep: names of other files to carry over (reports).
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as temporary:
        beside = Path(temporary) / folder.name
        beside.mkdir()
        for name in keep:
            if (folder / name).is_file():
                (beside / name).write_bytes((folder / name).read_bytes())
        for patch in patches:
            (beside / patch.name).write_bytes(patch.data)
        replace_folder(beside, folder)
