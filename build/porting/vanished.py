"""Notice names that left the tree: nothing has what a hunk uses, or nothing needs what it defines any more."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from build.porting.companions import Place, defined, hunks_of, placed_of
from build.porting.grammar import languages_of
from build.porting.moved_files import kind_of
from build.porting.names import NAME, declared, has_word, used
from build.porting.trees import Layer
from build.series.model import PatchFile
from build.series.verdicts import HunkVerdict

#: Least length of a name that is searched in whole trees.
SHORT = 5
#: Number of files with a name from which on it is there, and used.
ENOUGH = 2
#: Most names that are searched for one patch: the time is bounded.
MOST = 200
#: Number of names from which on a file's words are compared with them.
MANY = 32
#: Every byte that is not of a word as a blank.
_WORDS = bytes(byte if re.match(rb"\w", bytes([byte])) else 32 for byte in range(256))

#: The files that have a name: their content by name and path.
Found = Mapping[bytes, Mapping[str, bytes]]
_Names = Mapping[Place, set[bytes]]


@dataclass(frozen=True, slots=True)
class Names:
    """The files of a layer that have a name, each name searched once, while the layer stays as it is.

    Attributes:
        paths: the files that are searched.
        enough: number of files from which on a name is not searched any more.
    """

    layer: Layer
    paths: Collection[str]
    enough: int = sys.maxsize
    _found: dict[bytes, dict[str, bytes]] = field(default_factory=dict)

    def files(self, names: Collection[bytes], likely: Found = MappingProxyType({})) -> Found:
        """Return the files with each name; a name that none has is left out.

        Many names are searched first in the files that are `likely` to have them, so that few are searched in all.
        """
        rare = {name for name in names if name not in self._found}
        self._found.update((name, {}) for name in rare)
        if len(rare) > MANY:
            hints: dict[str, set[bytes]] = {}
            for name in rare:
                for path in likely.get(name, ()):
                    hints.setdefault(path, set()).add(name)
            self._search(rare, [path for path in self.paths if path in hints], hints)
        self._search(rare, self.paths)
        return {name: found for name in names if (found := self._found[name])}

    def _search(self, rare: set[bytes], paths: Collection[str], hints: Mapping[str, set[bytes]] | None = None) -> None:
        """Search files for the names that are `rare`, or for those of the file's `hints`, until none is rare."""
        for path, data in self.layer.read_all(paths) if rare else ():
            for name in among(rare if hints is None else rare & hints[path], data):
                self._found[name][path] = data
                if len(self._found[name]) == self.enough:
                    rare.discard(name)
            if not rare:
                break


@dataclass(frozen=True)
class Trees:
    """The tree that a patch is for, and the one that it is ported to, both without the patch.

    A name that left is in files that only the old tree has, or that are different there: most files are the same.
    """

    patch: PatchFile
    old: Layer
    new: Layer

    @cached_property
    def _kinds(self) -> frozenset[str]:
        return frozenset().union(*map(kind_of, self.patch.paths))

    @cached_property
    def _shared(self) -> set[str]:
        return self.old.shared(self.new, self.old.paths(self._kinds))

    @cached_property
    def _old(self) -> list[str]:
        return [path for path in self.old.paths(self._kinds) if path not in self._shared]

    @cached_property
    def once(self) -> Names:
        """The names of the old tree's files that the new one has not, or otherwise."""
        return Names(self.old, self._old, ENOUGH)

    @cached_property
    def before(self) -> Names:
        """The same with all files that have a name."""
        return Names(self.old, self._old)

    @cached_property
    def now(self) -> Names:
        """The names of the new tree's files that the old one has not, or otherwise."""
        return Names(self.new, [path for path in self.new.paths(self._kinds) if path not in self._shared], ENOUGH)

    @cached_property
    def always(self) -> Names:
        """The names of the files that both trees have."""
        return Names(self.new, [path for path in self.new.paths(self._kinds) if path in self._shared], ENOUGH)


def suspects(patch: PatchFile, verdicts: Iterable[HunkVerdict], trees: Trees) -> dict[Place, str]:
    """Return the placed hunks (path, number) that a person should see, each with the reason.

    Args:
        patch: the patch; only its changes of C, C++, Python and CMake are looked at.
        verdicts: what was found for its hunks.
        trees: both trees.
    """
    uses, defines = _names(patch, verdicts, trees.new)
    wanted = {name for names in (*uses.values(), *defines.values()) for name in names if len(name) >= SHORT}
    if not 0 < len(wanted) <= MOST or not (trees.old.tree.whole and trees.new.tree.whole):
        return {}
    once = trees.once.files(wanted)
    now = trees.now.files(once.keys(), once)
    here = {name for names in defines.values() for name in names}
    rare = {name for name in once if len(now.get(name, ())) < (ENOUGH if name in here else 1)}
    known = {name: once[name] for name in rare if len(once[name]) < ENOUGH}
    before = {**known, **trees.before.files(rare - known.keys())}
    if not _left(uses, defines, before, now):
        return {}
    always = trees.always.files(before.keys())
    return _left(
        uses, defines, before, {name: {**now.get(name, {}), **always.get(name, {})} for name in {*now, *always}}
    )


def _left(uses: _Names, defines: _Names, before: Found, now: Found) -> dict[Place, str]:
    """Return the hunks with a name that left, by the files that have it `before` and `now`."""
    found = {}
    for place, names in uses.items():
        if gone := sorted(name for name in names & before.keys() - now.keys() if _declares(before, name)):
            found[place] = f"it uses {gone[0].decode()}, which the old tree declares and the new one has nowhere"
    for place, names in defines.items():
        own = {place[0]}  # what the file itself makes of the name, as in `#ifdef`, needs no definition
        if idle := sorted(
            n for n in names & before.keys() if before[n].keys() - own and not now.get(n, {}).keys() - own
        ):
            found[place] = f"it defines {idle[0].decode()}, which other files of the old tree use, and none of the new"
    return found


def _names(patch: PatchFile, verdicts: Iterable[HunkVerdict], new: Layer) -> tuple[_Names, _Names]:
    """Return the names of each placed hunk that its added lines use, and its file lacks, and those that they define."""
    hunks = {place: hunk for place, hunk in hunks_of(patch).items() if languages_of(place[0])}
    own = declared(line for hunk in hunks.values() for line in hunk.added)
    uses, defines = {}, {}
    for place in placed_of(verdicts):
        state = new.get(place[0])
        if place in hunks and state:
            hunk, removed = hunks[place], set(hunks[place].removed)
            every = used(line for line in hunk.added if line not in removed) - own
            uses[place] = {name for name in every if not has_word(state.data, name)}
            defines[place] = defined(hunk.added).difference(*map(NAME.findall, removed))
    return uses, defines


def among(names: Collection[bytes], data: bytes) -> set[bytes]:
    """Return those of `names` that a file has as whole words; of many names it is quicker to compare its words."""
    if len(names) > MANY:
        return set(names).intersection(data.translate(_WORDS).split())
    return {name for name in names if has_word(data, name)}


def _declares(found: Found, name: bytes) -> bool:
    """Whether the project declares a name itself: what it took from elsewhere may still be there."""
    lines = (line for data in found[name].values() for line in data.split(b"\n") if name in line)
    return any(name in declared([line]) | defined([line]) for line in lines)
