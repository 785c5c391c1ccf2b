"""Notice names that left the tree: nothing has what a hunk uses, or nothing needs what it defines any more."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from build.porting.companions import Place, defined, hunks_of, placed_of
from build.porting.grammar import languages_of
from build.porting.moved_files import kind_of
from build.porting.names import NAME, declared, used
from build.porting.trees import Layer
from build.series.model import PatchFile
from build.series.verdicts import HunkVerdict

#: Least length of a name that is searched in whole trees.
SHORT = 5
#: Most names that are searched for one patch: the time is bounded.
MOST = 200

#: The lines that have a name, by name and path.
Found = Mapping[bytes, Mapping[str, list[bytes]]]


def suspects(patch: PatchFile, verdicts: Iterable[HunkVerdict], old: Layer, new: Layer) -> dict[Place, str]:
    """Return the placed hunks (path, number) that a person should see, each with the reason.

    Args:
        patch: the patch; only its changes of C, C++, Python and CMake are looked at.
        verdicts: what was found for its hunks.
        old: the tree that it is for; `new` the tree that it is ported to. Both are without it.
    """
    uses, defines = _names(patch, verdicts, new)
    wanted = {name for names in (*uses.values(), *defines.values()) for name in names if len(name) >= SHORT}
    if not 0 < len(wanted) <= MOST or not (old.tree.whole and new.tree.whole):
        return {}
    kinds = frozenset().union(*map(kind_of, patch.paths))
    now = _search(new, wanted, kinds)
    lost = {name for name in wanted if len(now.get(name, ())) < 2}
    before = _search(old, lost, kinds) if lost else {}
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


def _names(
    patch: PatchFile, verdicts: Iterable[HunkVerdict], new: Layer
) -> tuple[dict[Place, set[bytes]], dict[Place, set[bytes]]]:
    """Return the names of each placed hunk that its added lines use, and its file lacks, and those that they define."""
    hunks = {place: hunk for place, hunk in hunks_of(patch).items() if languages_of(place[0])}
    own = declared(line for hunk in hunks.values() for line in hunk.added)
    uses, defines = {}, {}
    for place in placed_of(verdicts):
        if place in hunks and (state := new.get(place[0])):
            hunk, removed = hunks[place], set(hunks[place].removed)
            here = set(NAME.findall(state.data))
            uses[place] = used(line for line in hunk.added if line not in removed) - own - here
            defines[place] = defined(hunk.added).difference(*map(NAME.findall, removed))
    return uses, defines


def _search(layer: Layer, names: set[bytes], kinds: Collection[str]) -> Found:
    found: dict[bytes, dict[str, list[bytes]]] = {}
    for path, line in layer.lines_with(names, kinds):
        for name in names & set(NAME.findall(line)):
            found.setdefault(name, {}).setdefault(path, []).append(line)
    return found


def _declares(found: Found, name: bytes) -> bool:
    """Whether the project declares a name itself: what it took from elsewhere may still be there."""
    return any(name in declared([line]) | defined([line]) for lines in found[name].values() for line in lines)
