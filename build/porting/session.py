"""A port that may need a person: its state on disk, the checkout with markers, going on and giving up."""

from __future__ import annotations

import os
import posixpath
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from build.errors import UsageError
from build.git import SUBMODULE, Git
from build.paths import atomic_write
from build.porting.engine import PatchPort, PatchState, Resolution, port_series
from build.porting.output import Committed, commit_ports, stage
from build.porting.resolve import take_up
from build.porting.trees import FileState, Tree
from build.seals import signed, unsigned
from build.series.apply import changed_paths, key_of
from build.series.checkout import new_repository, remove_folder, replacing
from build.series.model import PatchFile

_STATE = "state.json"
#: Folders that git does not look for a repository in, nor above.
_CEILING = "GIT_CEILING_DIRECTORIES"


class State(msgspec.Struct, frozen=True):
    """What `state.json` holds.

    Attributes:
        key: digest of patches and trees: a state only fits the port that made it.
        resolved: commits of the patches that a person decided, by patch name.
        current: the patch the checkout is about, empty between two.
        edit: its files to edit.
        left: tree id of the checkout as it was left, to tell whether anyone edited it.
    """

    key: str
    resolved: dict[str, str] = msgspec.field(default_factory=dict)
    current: str = ""
    edit: tuple[str, ...] = ()
    left: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished or waiting port: `checkout` is where a person has to edit `edit`, None when nothing is left.

    `git` holds the commits until `close` is called.
    """

    committed: tuple[Committed, ...]
    git: Git
    checkout: Path | None = None
    edit: tuple[str, ...] = ()
    fresh: bool = True


class Session:
    """One port between two trees, with a folder for its state; who makes one holds the lock on that."""

    def __init__(self, patches: Sequence[PatchFile], old: Tree, new: Tree, folder: Path) -> None:
        self.patches = patches
        self.old = old
        self.new = new
        self.folder = folder
        self.repo = folder / "checkout"

    def start(self) -> Outcome:
        """Port everything; where a patch needs a person, leave a checkout. Run again, it changes nothing.

        Raises:
            UsageError: another port's checkout with someone's edits is in the way.
        """
        state = self._state()
        if state is not None and state.key != self._key():
            if self._edited(state):
                raise UsageError(
                    f"{self.repo} holds edits of another port",
                    cause="patches or trees have changed since that port was started",
                    remedy="end it with --abort, or go back to its patches and trees and use --continue",
                )
            remove_folder(self.folder)
            state = None
        if state is None:
            self._create()
            state = State(self._key())
        return self._go_on(state)

    def resume(self, *, drop: bool = False) -> Outcome:
        """Take up what a person edited and port the patches behind it.

        Args:
            drop: give up the hunks that need a person instead.

        Raises:
            UsageError: nothing waits, markers are left, or files are changed that nobody asked for.
        """
        state = self._state()
        if state is None:
            raise UsageError(f"no port waits in {self.folder}", remedy="start one without --continue")
        if state.key != self._key():
            raise UsageError(
                "the port that waits is another one", cause="patches or trees have changed", remedy="use --abort"
            )
        if state.current:
            git = Git(self.repo)
            tree = take_up(git, state.edit, state.left, drop=drop)
            commit = git.commit(tree, state.current.encode(), "HEAD")
            git.out("update-ref", f"refs/resolved/{commit}", commit)
            state = State(state.key, {**state.resolved, state.current: commit})
            self._save(state)
        return self._go_on(state)

    def close(self) -> None:
        remove_folder(self.folder)

    def _go_on(self, state: State) -> Outcome:
        """Port all patches with what was decided so far, and leave a checkout for the first that is open."""
        git = Git(self.repo)
        resolved = {name: _resolution(git, commit) for name, commit in state.resolved.items()}
        ports = port_series(self.patches, self.old, self.new, resolved)
        committed = commit_ports(git, self.new.commit, ports)
        waiting = next((item for item in committed if item.port.state is PatchState.NEEDS_HUMAN), None)
        if waiting is None:
            return Outcome(committed, git)
        if state.current == waiting.port.patch.name:
            return Outcome(committed, git, self.repo, state.edit, fresh=False)
        edit, left = self._check_out(git, waiting)
        self._save(State(state.key, state.resolved, waiting.port.patch.name, edit, left))
        return Outcome(committed, git, self.repo, edit)

    def _check_out(self, git: Git, waiting: Committed) -> tuple[tuple[str, ...], str]:
        """Check out the tree before the patch, with its placed hunks staged and its conflicts marked."""
        port = waiting.port
        folders = {posixpath.dirname(path) for patch in self.patches for path in patch.paths}
        folders |= {posixpath.dirname(path) for path in (*port.files, *port.marked)}
        # Only where the series works: a whole PyTorch tree would take seconds and say no more.
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
        self._reject(port)
        return tuple(sorted({*port.marked, *_pathless(port)})), _tree_of(git)

    def _reject(self, port: PatchPort) -> None:
        """Write the patch next to the checkout, for the hunks that no file can show."""
        with atomic_write(self.folder / "current.patch") as part:
            part.write_bytes(port.patch.data)

    def _create(self) -> None:
        with replacing(self.folder) as new:
            new_repository(self.new.git, new / "checkout")
            (new / _STATE).write_bytes(signed(msgspec.json.encode(State(self._key()))))

    def _state(self) -> State | None:
        try:
            state = msgspec.json.decode(unsigned((self.folder / _STATE).read_bytes()) or b"", type=State)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError):
            raise UsageError(f"{self.folder / _STATE} is damaged", remedy="use --abort and start again") from None
        self._check_repository()
        return state

    def _check_repository(self) -> None:
        """Refuse a checkout whose repository is gone: git would take one around it, and clean that."""
        if Git(self.repo).call("rev-parse", "--git-dir", env={_CEILING: str(self.folder)}).returncode:
            raise UsageError(f"{self.repo} is damaged: it is no git repository", remedy="use --abort and start again")

    def _save(self, state: State) -> None:
        with atomic_write(self.folder / _STATE) as part:
            part.write_bytes(signed(msgspec.json.encode(state)))

    def _edited(self, state: State) -> bool:
        return bool(state.resolved) or (bool(state.current) and _tree_of(Git(self.repo)) != state.left)

    def _key(self) -> str:
        return key_of(f"{self.old.commit} {self.new.commit}", self.patches)


def discard(folder: Path) -> None:
    """Give a waiting port up; nothing outside its folder was touched.

    Raises:
        UsageError: none waits.
    """
    if not os.path.lexists(folder / _STATE):
        raise UsageError(f"no port waits in {folder}")
    remove_folder(folder)


def _pathless(port: PatchPort) -> set[str]:
    """Return the paths of hunks for a human that have no markers anywhere."""
    return {item.new_path or item.path for item in port.verdicts if item.verdict.needs_human and not port.marked}


def _tree_of(git: Git) -> str:
    """Return the tree id of the work tree, without touching its index."""
    with tempfile.TemporaryDirectory(prefix="multiworld-port-") as folder:
        index = Path(folder, "index")
        shutil.copyfile(git.git_dir() / "index", index)
        private = Git(git.folder, index)
        private.out("add", "--all", "--force")
        return private.line("write-tree", "--missing-ok")


def _resolution(git: Git, commit: str) -> Resolution:
    files: dict[str, FileState | None] = {}
    for item in changed_paths(git, f"{commit}^", commit):
        if item.new_blob.strip("0"):
            data = item.new_blob.encode() if item.new_mode == SUBMODULE else git.out("cat-file", "blob", item.new_blob)
            files[item.path] = FileState(item.new_mode, data)
        if item.old_path != item.path or not item.new_blob.strip("0"):
            files[item.old_path] = None
    return Resolution(files)
