"""Pair two stacks of one package: patches that a maintainer refreshed, and those dropped because upstream has them."""

from __future__ import annotations

import email.utils
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from enum import Enum
from pathlib import Path

from build.porting.groups import Edit, split
from build.porting.trees import Tree
from build.series.inspect import lines_of, locate_all
from build.series.model import FileChange, Hunk, PatchFile
from docs.bench.porting.stacks import Stack, patches_of, repository, stack_of

_NUMBER = re.compile(r"^\d+[-_]")
_COPIED = re.compile(
    rb"^From (?!0{40})[0-9a-f]{40} |cherry[- ]picked from commit|^commit [0-9a-f]{40}|[Uu]pstream commit", re.MULTILINE
)
_ORIGIN = re.compile(r"upstream|backport|/commit|[?;]id=|/rev/", re.IGNORECASE)
_FOLDERS = re.compile(r"(^|[-_/])(upstream|backports?|from[-_]upstream)([-_/]|$)")
#: Share of the lines a dropped patch brings in that the new files must have, for upstream to have the patch.
THERE = 1 / 3


class Kind(Enum):
    """Decisions of a maintainer about a patch."""

    REFRESHED = "refreshed"
    UPSTREAM = "dropped, upstream has it"


@dataclass(frozen=True, slots=True)
class RealHunk:
    """One hunk of an old patch, with what the maintainer made of it.

    Attributes:
        path, number: as the patch has it.
        hunk: its lines.
        new_path: the file of the new tree it belongs to; empty where the maintainer changed its text.
        edits: what it does to that file, as the maintainer placed it.
    """

    path: str
    number: int
    hunk: Hunk
    new_path: str = ""
    edits: tuple[Edit, ...] = ()

    @property
    def kept(self) -> bool:
        return bool(self.new_path)


@dataclass(frozen=True, slots=True)
class RealCase:
    """One patch to be ported, with the maintainer's answer.

    Attributes:
        patch: the old suite's.
        old: the tree it is for; `patched` the same with it; `new` the tree to port it to.
        paths: the files of the new tree that any tool may touch.
        hunks: all hunks of the patch.
    """

    kind: Kind
    patch: PatchFile
    old: Tree
    patched: Tree
    new: Tree
    paths: frozenset[str]
    hunks: tuple[RealHunk, ...] = field(repr=False, default=())

    @property
    def scored(self) -> tuple[RealHunk, ...]:
        return self.hunks if self.kind is Kind.UPSTREAM else tuple(hunk for hunk in self.hunks if hunk.kept)


@dataclass(frozen=True, slots=True)
class Side:
    """One stack, read."""

    folder: Path
    stack: Stack
    patches: Mapping[str, PatchFile]

    def tree(self, commit: str, label: str) -> Tree:
        return Tree(repository(self.folder), commit, label)


def read_side(folder: Path) -> Side:
    return Side(folder, stack_of(folder), patches_of(folder))


def cases(folder: Path) -> list[RealCase]:
    """Return the cases of a rebuilt package."""
    old, new = read_side(folder / "old"), read_side(folder / "new")
    partners = {_plain(item.name): item.name for item in new.stack.applied if item.name in new.patches}
    texts = {text for patch in new.patches.values() for text in _texts(patch)}
    found = []
    for item in old.stack.applied:
        patch = old.patches.get(item.name)
        if patch is None:
            continue
        partner = partners.get(_plain(item.name))
        if partner is not None:
            case = _refreshed(old, new, item.name, partner)
        elif came_from_upstream(patch) and not texts.intersection(_texts(patch)):
            case = _dropped(old, new, item.name, partners)
        else:
            case = None
        if case is not None and case.scored:
            found.append(case)
    return found


def _plain(name: str) -> str:
    """Return a patch's name without the number that a renumbered stack changes."""
    folder, _, base = name.rpartition("/")
    return f"{folder}/{_NUMBER.sub('', base)}"


def came_from_upstream(patch: PatchFile) -> bool:
    """Return whether a patch says that it is upstream's, by a field of DEP-3, a commit, or its folder."""
    fields = patch.fields
    if fields.get("Applied-Upstream") or _ORIGIN.search(fields.get("Origin", "")):
        return True
    return bool(_FOLDERS.search(patch.name) or _COPIED.search(patch.header))


def _texts(patch: PatchFile) -> set[tuple[str, tuple[bytes, ...]]]:
    return {(change.path, _changes(hunk)) for change in patch.changes for hunk in change.hunks}


def _changes(hunk: Hunk) -> tuple[bytes, ...]:
    return tuple(line for line in hunk.lines if line[:1] != b" ")


def _refreshed(old: Side, new: Side, name: str, partner: str) -> RealCase | None:
    """Return the case of a patch that both stacks have; None if its text is the same, which is no port."""
    before, after = old.patches[name], new.patches[partner]
    if before.diff == after.diff:
        return None
    start = next(item for item in old.stack.applied if item.name == name)
    there = next(item for item in new.stack.applied if item.name == partner)
    tree = new.tree(there.before, "new")
    paths = before.paths | after.paths
    placed = {change.path: _placed(tree, change) for change in after.changes}
    hunks = [hunk for change in before.changes for hunk in _kept(change, placed)]
    trees = old.tree(start.before, "old"), old.tree(start.after, "patched")
    return RealCase(Kind.REFRESHED, before, *trees, tree, paths, tuple(hunks))


@dataclass(frozen=True, slots=True)
class _Group:
    """A run of removed and added lines: its text, and its place."""

    text: tuple[tuple[bytes, ...], tuple[bytes, ...]]
    edit: Edit


def _placed(tree: Tree, change: FileChange) -> list[_Group]:
    """Return the groups of a maintainer's change at their places in the new tree."""
    lines = lines_of(data_of(tree, change.old_path or change.path))
    found = []
    for number, (hunk, at, _) in enumerate(locate_all(lines, change.hunks), 1):
        found += [
            _Group((tuple(lines[g.start : g.end]), g.lines), Edit(g.start, g.end, g.lines))
            for g in (split(hunk, number, at).groups if at is not None else ())
        ]
    return found


def _kept(change: FileChange, placed: Mapping[str, Sequence[_Group]]) -> list[RealHunk]:
    """Return the hunks of a change; those whose every group the maintainer kept have the place he gave it."""
    groups: list[tuple[int, tuple[tuple[bytes, ...], tuple[bytes, ...]]]] = []
    for number, hunk in enumerate(change.hunks, 1):
        old = hunk.old
        groups += [(number, (tuple(old[g.start : g.end]), g.lines)) for g in split(hunk, number, 0).groups]
    there = placed.get(change.path, [])
    matcher = SequenceMatcher(None, [text for _, text in groups], [item.text for item in there], autojunk=False)
    partner = {a + n: there[b + n] for a, b, size in matcher.get_matching_blocks() for n in range(size)}
    found = []
    for number, hunk in enumerate(change.hunks, 1):
        mine = [n for n, (owner, _) in enumerate(groups) if owner == number]
        whole = bool(mine) and all(n in partner for n in mine)
        edits = tuple(partner[n].edit for n in mine) if whole else ()
        found.append(RealHunk(change.path, number, hunk, change.path if whole else "", edits))
    return found


def _dropped(old: Side, new: Side, name: str, partners: Mapping[str, str]) -> RealCase | None:
    """Return the case of a patch that upstream has: nothing of it may be put in. None if it is newer than upstream."""
    start = next(item for item in old.stack.applied if item.name == name)
    patch = old.patches[name]
    if _date(patch) > new.stack.released:
        return None
    shared = {partners.get(_plain(item)) for item in _until(old.stack, name)}
    commit = new.stack.base
    for item in new.stack.applied:
        if item.name not in shared:
            break
        commit = item.after
    hunks = tuple(
        RealHunk(change.path, number, hunk) for change in patch.changes for number, hunk in enumerate(change.hunks, 1)
    )
    tree = new.tree(commit, "new")
    trees = old.tree(start.before, "old"), old.tree(start.after, "patched")
    if not _mostly_there(patch, trees[0], tree):
        return None
    return RealCase(Kind.UPSTREAM, patch, *trees, tree, patch.paths, hunks)


def _mostly_there(patch: PatchFile, old: Tree, new: Tree) -> bool:
    """Return whether the new files have enough of a patch's added lines; else upstream solved it in another way.

    A line that the old files have without the patch, which moves or repeats it, says nothing: upstream kept it.
    """
    added = {line.strip() for change in patch.changes for hunk in change.hunks for line in hunk.added}
    telling = {line for line in added if re.search(rb"\w\w\w", line)} - _lines(patch, old)
    return len(telling & _lines(patch, new)) >= THERE * len(telling)


def _lines(patch: PatchFile, tree: Tree) -> set[bytes]:
    return {line.strip() for path in patch.paths for line in lines_of(data_of(tree, path))}


def data_of(tree: Tree, path: str) -> bytes:
    """Return the content of a file, nothing where there is none."""
    state = tree.read(path)
    return state.data if state else b""


def _until(stack: Stack, name: str) -> list[str]:
    names = [item.name for item in stack.applied]
    return names[: names.index(name)]


def _date(patch: PatchFile) -> float:
    """Return when a patch was written, by its mail header; 0 if it does not say so."""
    found = re.search(rb"^Date: (.+)$", patch.header, re.MULTILINE)
    try:
        return email.utils.parsedate_to_datetime(found[1].decode("ascii", "replace")).timestamp() if found else 0.0
    except ValueError:
        return 0.0
