"""A port that may need a person: its state on disk, its commits, and a checkout with conflict markers to edit."""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from build.errors import UsageError
from build.git import SUBMODULE, Git
from build.paths import atomic_write, clear
from build.porting import Action
from build.porting.engine import PatchPort, PatchState, port_series
from build.porting.fileport import Files
from build.porting.trees import FileState, Tree
from build.seals import read_record, write_record
from build.series.apply import changed_paths, key_of
from build.series.commits import export_diff, export_stat, new_repository, replacing
from build.series.model import PatchFile

_STATE = "state.json"
#: What the series had before a port between releases; `--abort` restores it.
BEFORE = "before.json"
#: git does not search these folders for a repository.
_CEILING = "GIT_CEILING_DIRECTORIES"
_MARKER = re.compile(rb"^(<{7}|\|{7}|>{7})( |\r?$)", re.MULTILINE)
_WHOLE = re.compile(rb"^<{7} .*?\n(.*?)^\|{7} .*?\n.*?^={7}\n.*?^>{7} .*?\n", re.MULTILINE | re.DOTALL)

#: What other tools write above the first file's `---`; its name may be another one in the new diff.
_INDEX = re.compile(rb"(?:^(?:Index: |=====|diff |Only in ).*\n)+\Z", re.MULTILINE)
_STAT = re.compile(
    rb"(?:^ .+ \| .*\n)+^ \d+ files? changed.*\n(?:^ (?:create|delete|mode|rename|copy|rewrite) .*\n)*", re.MULTILINE
)
#: The last part of a file's name in a diffstat, and how many of its lines changed.
_CHANGED = re.compile(rb"^ (?:.*[/ ])?(\S+) +\| +(\w+)", re.MULTILINE)


class State(msgspec.Struct, frozen=True):
    """The content of `state.json`.

    Attributes:
        key: digest of patches and trees; a state is only for the port that wrote it.
        resolved: commits of the patches that a person decided, by patch name.
        current: the patch to be decided in the checkout, empty between two.
        edit: its files to edit.
        left: tree id of the checkout as it was left, to tell whether anyone edited it.
    """

    key: str
    resolved: dict[str, str] = msgspec.field(default_factory=dict)
    current: str = ""
    edit: tuple[str, ...] = ()
    left: str = ""


@dataclass(frozen=True, slots=True)
class Committed:
    """A ported patch and its commit, which is `parent` where the patch changes nothing."""

    port: PatchPort
    commit: str
    parent: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished or waiting port: a person has to edit `edit` in `checkout`, which is None for a finished one.

    `git` holds the commits until `close` is called.
    """

    committed: tuple[Committed, ...]
    git: Git
    checkout: Path | None = None
    edit: tuple[str, ...] = ()


class Session:
    """One port between two trees, with a folder for its state; the caller holds the lock on that."""

    def __init__(self, patches: Sequence[PatchFile], old: Tree, new: Tree, folder: Path) -> None:
        self.patches = patches
        self.old = old
        self.new = new
        self.folder = folder
        self.repo = folder / "checkout"

    def run(self, action: Action) -> Outcome:
        """Port everything, or continue with what a person edited (`DROP`: without the hunks that need a person).

        A checkout is left if a patch needs a person. A second start changes nothing.

        Raises:
            UsageError: the folder has another port's checkout with edits, no port waits, markers are left, or other
                files are changed.
        """
        return self._go_on(self._started() if action is Action.START else self._resumed(drop=action is Action.DROP))

    def close(self) -> None:
        _remove(self.folder)

    def _started(self) -> State:
        state = self._state()
        if state is not None and state.key != self._key():
            if state.resolved or (state.current and _tree_of(Git(self.repo)) != state.left):
                remedy = "end it with --abort, or go back to its patches and trees and use --continue"
                raise UsageError(f"{self.repo} holds edits of another port", remedy=remedy)
            _remove(self.folder)
            state = None
        if state is None:
            state = State(self._key())
            with replacing(self.folder) as new:
                new_repository(self.new.git, new / "checkout")
                write_record(new / _STATE, state)
        return state

    def _resumed(self, *, drop: bool) -> State:
        state = self._state()
        if state is None:
            raise UsageError(f"no port waits in {self.folder}", remedy="start one without --continue")
        if state.key != self._key():
            raise UsageError("another port waits", cause="patches or trees have changed", remedy="use --abort")
        if state.current:
            git = Git(self.repo)
            tree = _take_up(git, state.edit, state.left, drop=drop)
            commit = git.commit(tree, state.current.encode(), "HEAD")
            git.out("update-ref", f"refs/resolved/{commit}", commit)
            state = State(state.key, {**state.resolved, state.current: commit})
            write_record(self.folder / _STATE, state)
        return state

    def _go_on(self, state: State) -> Outcome:
        """Port all patches with the decisions so far, and leave a checkout for the first that needs a person."""
        git = Git(self.repo)
        resolved = {name: _resolution(git, commit) for name, commit in state.resolved.items()}
        ports = port_series(self.patches, self.old, self.new, resolved)
        committed = commit_ports(git, self.new.commit, ports)
        waiting = next((item for item in committed if item.port.state is PatchState.NEEDS_HUMAN), None)
        if waiting is None:
            return Outcome(committed, git)
        if state.current == waiting.port.patch.name:
            return Outcome(committed, git, self.repo, state.edit)
        edit, left = self._check_out(git, waiting)
        write_record(self.folder / _STATE, State(state.key, state.resolved, waiting.port.patch.name, edit, left))
        return Outcome(committed, git, self.repo, edit)

    def _check_out(self, git: Git, waiting: Committed) -> tuple[tuple[str, ...], str]:
        """Check out the tree before the patch, with its placed hunks staged and its conflicts marked."""
        port = waiting.port
        folders = {posixpath.dirname(path) for patch in self.patches for path in patch.paths}
        folders |= {posixpath.dirname(path) for path in (*port.files, *port.marked)}
        # Only the folders of the series: a whole PyTorch tree would take seconds.
        named = "".join(f"{folder}\n" for folder in sorted(folders) if folder).encode()
        git.out("sparse-checkout", "set", "--cone", "--stdin", stdin=named)
        git.out("checkout", "--quiet", "--force", "--detach", waiting.parent)
        git.out("clean", "-fdxq")
        stage(git, port.files)
        kept = [path for path, state in port.files.items() if state is not None and state.mode != SUBMODULE]
        names = b"".join(os.fsencode(path) + b"\0" for path in kept)
        git.out("checkout-index", "--force", "--stdin", "-z", stdin=names)
        for path, state in port.files.items():
            if state is None:
                (git.folder / path).unlink(missing_ok=True)
        for path, state in port.marked.items():
            if state is not None:
                (git.folder / path).parent.mkdir(parents=True, exist_ok=True)
                (git.folder / path).write_bytes(state.data)
        # For the hunks that cannot be shown by markers in a file.
        with atomic_write(self.folder / "current.patch") as part:
            part.write_bytes(port.patch.data)
        unmarked = {v.new_path or v.path for v in port.verdicts if v.verdict.needs_human and not port.marked}
        return tuple(sorted({*port.marked, *unmarked})), _tree_of(git)

    def _state(self) -> State | None:
        if not waits(self.folder):
            return None
        state = read_record(self.folder / _STATE, State)
        if state is None:
            raise UsageError(f"{self.folder / _STATE} is damaged", remedy="use --abort and start again")
        # Without its repository, git would use one in a folder above, and clean that.
        if Git(self.repo).call("rev-parse", "--git-dir", env={_CEILING: str(self.folder)}).returncode:
            what = f"{self.repo} is damaged: it is not a git repository"
            raise UsageError(what, remedy="use --abort and start again")
        return state

    def _key(self) -> str:
        return key_of(f"{self.old.commit} {self.new.commit}", self.patches)


def waits(folder: Path) -> bool:
    return os.path.lexists(folder / _STATE)


def discard(folder: Path) -> None:
    """Discard a waiting port, which is only in its folder.

    Raises:
        UsageError: no port waits.
    """
    if not waits(folder):
        raise UsageError(f"no port waits in {folder}")
    _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a port's folder: what an interruption leaves after its state is no port, and the next one replaces it."""
    clear(folder / BEFORE)  # first: `--abort` after an interruption must not undo a finished port
    clear(folder / _STATE)
    clear(folder)


def _take_up(git: Git, edit: Sequence[str], left: str, *, drop: bool) -> str:
    """Return the id of the tree that a person made of a checkout, whose placed hunks are staged.

    Raise UsageError for markers, for other changed files, and if it is still `left`. `drop` keeps the new tree's sides.
    """
    # The files with unstaged changes, and the untracked files.
    git.call("update-index", "--refresh", "-q")
    changed = git.out("diff-files", "--name-only", "-z").split(b"\0")
    unknown = git.out("ls-files", "--others", "--exclude-standard", "-z").split(b"\0")
    if others := sorted({os.fsdecode(name) for name in (*changed, *unknown) if name} - set(edit)):
        what = f"changed files that are not part of the conflict: {', '.join(others[:5])}"
        raise UsageError(what, remedy="git add those that belong to the patch, git checkout or remove the others")
    for file in (git.folder / path for path in edit) if drop else ():
        if file.is_file():
            file.write_bytes(_WHOLE.sub(rb"\1", file.read_bytes()))
    if marks := [place for path in edit for place in _marks(git.folder / path, path)]:
        remedy = "edit these places, then use --continue again (or --drop to leave the hunks out)"
        raise UsageError(f"conflict markers are left: {', '.join(marks[:8])}", remedy=remedy)
    existing = [path for path in edit if (git.folder / path).exists()]
    gone = [path for path in edit if path not in existing]
    if existing:
        git.out("add", "--force", "--", *existing)
    if gone:
        git.out("rm", "--cached", "--quiet", "--ignore-unmatch", "--", *gone)
    tree = git.line("write-tree", "--missing-ok")
    if tree == left and not drop:
        what = f"nothing was decided: these need an edit: {', '.join(edit)}"
        raise UsageError(what, remedy="make it and git add it, or use --continue --drop to leave the hunks out")
    return tree


def _marks(file: Path, path: str) -> list[str]:
    if not file.is_file():
        return []
    data = file.read_bytes()
    found = [match for match in _MARKER.finditer(data) if match[1] == b"<" * 7] or _MARKER.finditer(data)
    return [f"{path}:{data.count(bytes([10]), 0, match.start()) + 1}" for match in found]


def _tree_of(git: Git) -> str:
    """Return the tree id of the work tree; its index is not changed."""
    with tempfile.TemporaryDirectory(prefix="multiworld-port-") as folder:
        index = Path(folder, "index")
        shutil.copyfile(git.git_dir() / "index", index)
        private = Git(git.folder, index)
        private.out("add", "--all", "--force")
        return private.line("write-tree", "--missing-ok")


def _resolution(git: Git, commit: str) -> Files:
    files: dict[str, FileState | None] = {}
    for item in changed_paths(git, f"{commit}^", commit):
        if item.new_blob.strip("0"):
            data = item.new_blob.encode() if item.new_mode == SUBMODULE else git.out("cat-file", "blob", item.new_blob)
            files[item.path] = FileState(item.new_mode, data)
        if item.old_path != item.path or not item.new_blob.strip("0"):
            files[item.old_path] = None
    return files


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
                tree = staged.line("write-tree", "--missing-ok")
                head = staged.commit(tree, port.patch.name.encode() + b"\n", parent)
            found.append(Committed(port, head, parent))
    return tuple(found)


def stage(staged: Git, files: Mapping[str, FileState | None]) -> None:
    lines = []
    for path, state in files.items():
        if state is None:
            lines.append(b"0 " + b"0" * 40 + b"\t" + os.fsencode(path))
            continue
        submodule = state.mode == SUBMODULE
        blob = state.data.decode() if submodule else staged.line("hash-object", "-w", "--stdin", stdin=state.data)
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
        counted = sorted(_CHANGED.findall(stat))
        keeps = not moved and counted == sorted(_CHANGED.findall(_STAT.findall(header)[0]))
        header = header if keeps else _STAT.sub(lambda _: stat, header)
    return header + export_diff(git, item.parent, item.commit)
