"""Find where a file, or a part of one, moved in the new tree."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from build.porting.lines import distinctive, norm
from build.porting.trees import BATCH, Tree

#: Files of one kind may be renamed into each other.
_KINDS = (
    frozenset({".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hpp", ".hh", ".inl", ".inc", ".mm", ".hip"}),
    frozenset({".py", ".pyi"}),
    frozenset({".cmake", ".txt"}),
)
#: Ending of the file that another one is generated from: it has the code where the latter is not kept any more.
_TEMPLATE = ".in"
_VENDORED = ("third_party/", "vendor/", "external/")
#: Share of an old file's distinctive lines that a new one must have to be the same file.
RENAMED = 0.5
#: The same for a part of a file, which is short and must be certain.
SPLIT = 0.7
#: Fewer distinctive lines of a part of a file say too little; a new file may have fewer.
LEAST = 3
#: Least distance to the second best.
MARGIN = 0.2
#: Number of long lines that are searched first: most files have none of them.
PROBES = 8
#: Number of lines from which on a file's lines are compared with them: fewer are searched one by one.
MANY = 12
#: Greatest size in bytes of a source that may be split or renamed.
LARGEST = 1 << 19


@dataclass(frozen=True, slots=True)
class _Pool:
    """Files among which one is searched, and which of them have a line: many lines are searched in one pass."""

    files: Mapping[str, bytes]
    _having: dict[bytes, list[str]] = field(default_factory=dict)

    def having(self, lines: Collection[bytes], soon: Collection[bytes] = ()) -> Iterator[list[str]]:
        """Yield the files that have each of `lines`; those that will be asked for `soon` are searched as well."""
        if new := {line for line in lines if line not in self._having}:
            new.update(line for line in soon if line not in self._having)
            self._having.update((line, []) for line in new)
            for name, data in self.files.items():
                likely = new if len(new) > MANY else {line for line in new if line in data}
                for line in likely and likely.intersection(map(bytes.strip, data.split(b"\n"))):
                    self._having[line].append(name)
        return (self._having[line] for line in lines)


@dataclass(slots=True)
class Finder:
    """Finds what moved between two trees; each candidate is read once."""

    old: Tree
    new: Tree
    _contents: dict[str, bytes] = field(default_factory=dict)
    _changed_ones: dict[str, _Pool] = field(default_factory=dict)
    _soon: set[bytes] = field(default_factory=set)

    def expect(self, lines: Iterable[bytes]) -> None:
        """Say which part of a file may be asked for: the parts of a patch are then searched together."""
        self._soon.update(_probes(_telling(lines)))

    def renamed(self, path: str, data: bytes) -> tuple[str, str] | None:
        """Return the new path of a file that is gone, with the evidence; None if it is uncertain."""
        before = self.old.entries.get(path)
        template = path + _TEMPLATE
        fresh = [name for name in self.new.entries if name == template or name not in self.old.entries]
        same = [name for name in fresh if before and self.new.entries[name].blob == before.blob]
        if len(same) == 1:
            return same[0], "the same content under another name"
        lines = _telling(data.split(b"\n"))
        likely = [name for name in fresh if name == template or alike(path, name)]
        found = _best(lines, _Pool(self._read(likely)), RENAMED, path)
        return (found[0], f"{found[1]:.0%} of its distinctive lines are in {found[0]}") if found else None

    def piece(self, path: str, lines: Sequence[bytes], least: int = LEAST) -> tuple[str, str] | None:
        """Return the one file that has lines of `path` now, with the evidence; fewer than `least` say too little."""
        wanted = _telling(lines)
        if len(wanted) < least:
            return None
        old = self.old.entries
        found = _best(wanted, self._changed(path), SPLIT, path, self._soon)
        if found is None:
            return None
        if found[0] in old and _share(wanted, self.old.read_many([found[0]]).get(found[0], b"")) > SPLIT / 2:
            return None  # the file had such lines before: a copy, not the part that moved
        return found[0], f"{found[1]:.0%} of the distinctive lines around it are in {found[0]}"

    def _changed(self, path: str) -> _Pool:
        kind = f"{path.startswith(_VENDORED)} {posixpath.splitext(path)[1]}"
        if kind not in self._changed_ones:
            old, new = self.old.entries, self.new.entries
            changed = (name for name, entry in new.items() if name not in old or old[name].blob != entry.blob)
            self._changed_ones[kind] = _Pool(self._read([name for name in changed if alike(path, name)]))
        return self._changed_ones[kind]

    def _read(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return the candidates' contents, each read once, in batches: a whole tree takes too much memory."""
        wanted = [name for name in names if name not in self._contents]
        for start in range(0, len(wanted), BATCH):
            part = wanted[start : start + BATCH]
            found = self.new.read_many(part)
            self._contents |= {name: found.get(name, b"") for name in part}
            self._contents |= {name: b"" for name in part if len(found.get(name, b"")) > LARGEST}
            self.new.keep({name: data for name, data in found.items() if len(data) <= LARGEST})
        return {name: self._contents[name] for name in names}


def alike(a: str, b: str) -> bool:
    """Return whether two paths are of one kind of file, and both or neither vendored."""
    return a.startswith(_VENDORED) == b.startswith(_VENDORED) and bool(kind_of(a) & kind_of(b))


def kind_of(path: str) -> frozenset[str]:
    """Return the endings of a file's kind: its own, and those that it may get when it is renamed."""
    end = posixpath.splitext(path)[1]
    return next((kind for kind in _KINDS if end in kind), frozenset({end}))


def _share(lines: set[bytes], data: bytes) -> float:
    return sum(line in data for line in lines) / len(lines) if lines else 0.0


def _telling(lines: Iterable[bytes]) -> set[bytes]:
    return {norm(line) for line in lines if distinctive(line)}


def _probes(lines: Collection[bytes]) -> list[bytes]:
    """Return the lines that are searched first, the longest; of equal length, the same in every run."""
    return sorted(lines, key=lambda line: (-len(line), line))[:PROBES]


def _best(
    lines: set[bytes], pool: _Pool, enough: float, path: str, soon: Collection[bytes] = ()
) -> tuple[str, float] | None:
    """Return the file other than `path` with the largest share of `lines`, if it is enough and ahead of the others.

    Of the lines searched `soon`, see `_Pool.having`.
    """
    probe = _probes(lines)
    counts = Counter(name for files in pool.having(probe, soon) for name in files)
    likely = [name for name in pool.files if counts[name] >= int(enough / 2 * len(probe)) and name != path]
    scored = sorted(((_share(lines, pool.files[name]), name) for name in likely), reverse=True)
    if not scored or scored[0][0] < enough or (len(scored) > 1 and scored[0][0] - scored[1][0] < MARGIN):
        return None
    return scored[0][1], scored[0][0]
