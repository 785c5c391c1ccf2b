"""Commit what was ported and write it as patches."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from build.git import SUBMODULE, Git
from build.porting.engine import PatchPort, PatchState
from build.porting.trees import FileState
from build.series.commits import export_diff, export_stat

#: What other tools write above the first file's `---`; its name may be another one in the new diff.
_INDEX = re.compile(rb"(?:^(?:Index: |=====|diff |Only in ).*\n)+\Z", re.MULTILINE)
_STAT = re.compile(
    rb"(?:^ .+ \| .*\n)+^ \d+ files? changed.*\n(?:^ (?:create|delete|mode|rename|copy|rewrite) .*\n)*", re.MULTILINE
)
#: The last part of a file's name in a diffstat, and how many of its lines changed.
_CHANGED = re.compile(rb"^ (?:.*[/ ])?(\S+) +\| +(\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Committed:
    """A ported patch and its commit, which is `parent` where the patch changes nothing."""

    port: PatchPort
    commit: str
    parent: str


def commit_ports(git: Git, base: str, ports: Sequence[PatchPort]) -> tuple[Committed, ...]:
    """Commit every port in order, the first on `base`, the new tree's commit, in a repository that may be written to.

    Of a port that needs a human, the placed hunks are committed: later ones were ported on top of them.
    """
    head, found = base, []
    with tempfile.TemporaryDirectory(prefix="multiworld-port-") as folder:
        staged = Git(git.folder, Path(folder, "index"))
        staged.out("read-tree", base)
        for port in ports:
            stage(staged, port.files)
            parent = head
            if port.state in {PatchState.PORTED, PatchState.NEEDS_HUMAN}:
                head = staged.commit(
                    staged.line("write-tree", "--missing-ok"), port.patch.name.encode() + b"\n", parent
                )
            found.append(Committed(port, head, parent))
    return tuple(found)


def stage(staged: Git, files: Mapping[str, FileState | None]) -> None:
    """Put files into an index (None removes one)."""
    lines = []
    for path, state in files.items():
        if state is None:
            lines.append(b"0 " + b"0" * 40 + b"\t" + os.fsencode(path))
            continue
        blob = state.data.decode() if state.mode == SUBMODULE else staged.write_blob(state.data)
        lines.append(f"{state.mode} {blob}\t".encode() + os.fsencode(path))
    # Removals first: a file may take the place of a folder.
    lines.sort(key=lambda line: not line.startswith(b"0 "))
    if lines:
        staged.out("update-index", "-z", "--add", "--index-info", stdin=b"\0".join(lines) + b"\0")


def render(git: Git, item: Committed) -> bytes:
    """Return a ported patch as bytes: the same bytes where nothing differs, else its header with a new diff.

    The header is kept byte for byte, but for a diffstat that is not true any more.
    """
    patch = item.port.patch
    if item.port.identical:
        return patch.data
    header = _INDEX.sub(b"", patch.header)
    if len(_STAT.findall(header)) == 1:
        moved = any(verdict.new_path for verdict in item.port.verdicts)
        stat = export_stat(git, item.parent, item.commit)
        header = _STAT.sub(lambda old: old[0] if _same(old[0], stat) and not moved else stat, header)
    return header + export_diff(git, item.parent, item.commit)


def _same(one: bytes, other: bytes) -> bool:
    """Return whether two diffstats count the same."""
    return sorted(_CHANGED.findall(one)) == sorted(_CHANGED.findall(other))
