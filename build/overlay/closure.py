"""The units of an overlay: the patched ones, and those that define hidden symbols of these, or use them.

Stock code that uses hidden symbols was linked to them directly, without symbol lookup: it stays with the stock copy, so
that a patch has no effect on it, and of a variable there are two. The instructions of the library show it.
"""

from __future__ import annotations

import re
import tempfile
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile
from rich.progress import Progress

from build.console import note, progress
from build.errors import CompileError, NeedsFullBuildError
from build.overlay import differing
from build.overlay.checks import spans
from build.overlay.model import Inputs, Object
from build.overlay.objects import compile_one, jobs, override_headers
from build.overlay.symbols import defined, demangle, exported, functions, names, scoped_name, undefined
from build.overlay.toolchain import make
from build.process import run, run_together

#: Units that are added since they use hidden symbols of others, before giving up.
_MOST_USERS = 12
#: Where the host units of all libraries live.
_SEARCH = ("torch/csrc", "aten/src/ATen", "c10")
#: Units that are compiled in search of one hidden symbol before giving up.
_MOST_TRIED = 6


class Definers:
    """The texts of a tree's host units, read once: there are 40 MB of them."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree

    @cached_property
    def _texts(self) -> dict[str, bytes]:
        units = [path for root in _SEARCH for path in sorted((self._tree / root).rglob("*.cpp"))]
        return {str(path.relative_to(self._tree)): path.read_bytes() for path in units if "test" not in path.parts}

    def of(self, demangled: str) -> list[str]:
        """Return the units whose text seems to define a symbol, most likely first.

        First those with the body of a function of its name, then those with its qualified name, then those with a
        variable of its name, then those that only declare or call such a function.
        """
        scope, name = (re.escape(part).encode() for part in scoped_name(demangled))
        # No \b: it needs a letter, and `~Holder` begins with none, as `operator==` ends with none.
        whole = rb"(?<!\w)" + name + rb"(?!\w)"
        # In one line: over several, a table of numbers takes minutes.
        unqualified = rb"^(?:extern\s+\"C\"\s)?[\w:<>,&*~ \t]*" + whole + rb"\s*\("
        body = re.compile(unqualified + rb"[^;{}]*\)[^;{}]*\{", re.M)
        qualified = re.compile(rb"\b" + scope + rb"(<[^<>]*>)?::\s*" + whole + rb"\s*[({=;]")
        variable = re.compile(rb"^(?!.*\bextern\b)[\w:<>,&* \t]*" + whole + rb"\s*(=[^=]|\{|;)", re.M)
        mention = re.compile(unqualified, re.M)
        literal, word = scoped_name(demangled)[1].encode(), re.compile(whole)
        texts = {path: text for path, text in self._texts.items() if literal in text and word.search(text)}
        patterns = (body, qualified, variable, mention)
        ranks = {path: tuple(item.search(text) is None for item in patterns) for path, text in texts.items()}
        fit = (path for path in sorted(ranks, key=lambda path: (ranks[path], path)) if not all(ranks[path]))
        return list(fit)[:_MOST_TRIED]


def hidden_needs(inputs: Inputs, objects: Iterable[Path]) -> frozenset[str]:
    """Return the symbols that `objects` need and that stock has without exporting them.

    The wheels keep their full symbol tables, in which such a symbol is a local one.
    """
    libraries = [inputs.lib / name for name in inputs.replaceable]
    missing = undefined(objects).difference(*(exported(library).keys() for library in libraries))
    found = [defined(library)[name] for library in libraries for name in missing & defined(library).keys()]
    # Size 0: made by the linker, such as _GLOBAL_OFFSET_TABLE_. Standard: parts of a newer libstdc++ that the official
    # build linked statically; this machine's compiler has its own.
    return frozenset(item.name for item in found if item.size and not item.standard)


class Pool:
    """The units that have been compiled, or do not compile: at once, each of them once and the biggest first."""

    def __init__(self, inputs: Inputs, overrides: Path, bar: Progress) -> None:
        self.inputs, self._overrides, self._bar = inputs, overrides, bar
        self._task = bar.add_task("compiling", total=0)
        self.definers = Definers(inputs.tree)
        self._made = dict[str, Object]()
        self._failed = dict[str, CompileError]()

    def compile(self, units: Mapping[str, str]) -> tuple[Object, ...]:
        """Return the objects of `units` (path to reason).

        Raises:
            CompileError: a unit does not compile; the message has the compiler's last lines.
        """
        new = [unit for unit in units if unit not in self._made]
        new.sort(key=lambda unit: -(self.inputs.tree / unit).stat().st_size)
        self._bar.update(self._task, total=len(self._made) + len(self._failed) + len(new))
        if new:
            tasks = [partial(self._compile, unit) for unit in new]
            self._made |= {item.unit: item for item in run_together(tasks, jobs(self.inputs.jobs), grace=0)}
        return tuple(replace(self._made[unit], why=why) for unit, why in units.items())

    def _compile(self, unit: str) -> Object:
        if unit in self._failed:
            raise self._failed[unit]
        try:
            item = compile_one(self.inputs, unit, self._overrides)
        except CompileError as error:
            self._failed[unit] = error
            raise
        note(f"{unit}: {f'{item.seconds:.1f} s' if item.seconds else 'unchanged, reused'}")
        self._bar.advance(self._task)
        return item


@contextmanager
def compiling(inputs: Inputs) -> Iterator[Pool]:
    """Yield a pool with as many compilers as cores and memory allow; its objects stay when the block ends."""
    with tempfile.TemporaryDirectory(prefix="overrides-") as scratch, progress() as bar:
        override_headers(inputs, Path(scratch))
        yield Pool(inputs, Path(scratch), bar)


def _definer(pool: Pool, symbol: str, demangled: str, have: Collection[str], why: str) -> Object:
    """Return the compiled unit that defines one hidden symbol: the text only suggests it, the object proves it."""
    tried: list[str] = []
    for unit in (unit for unit in pool.definers.of(demangled) if unit not in have):
        try:
            (made,) = pool.compile({unit: why})
        except CompileError as error:
            last = (error.cause.splitlines() or [""])[-1]
            tried.append(f"{unit} was tried and does not compile: {last}\n{error.remedy}")
            continue
        if symbol in names(made.path).defined:
            return made
        tried.append(f"{unit} was tried and does not define it")
    why = "\n".join([f"no unit of the tree defines {symbol}, which is hidden in the wheel's libraries", *tried])
    remedy = "do what the cause says of a unit that does not compile; or name the one that defines it: `extra_units`"
    what = f"the overlay needs {demangled}, which the official wheel does not export"
    raise CompileError(what, cause=why, remedy=remedy)


def compile_closure(inputs: Inputs) -> tuple[Object, ...]:
    """Compile the patched units, the release's extra ones, and the units with hidden symbols that these need.

    For patches of a user also the units whose stock code uses hidden symbols of these; of a series, probes show that
    it is in force.

    Raises:
        CompileError: a unit does not compile, or no unit defines a hidden symbol.
        NeedsFullBuildError: stock code that cannot be in the overlay uses hidden symbols of its units.
    """
    units = dict(inputs.units)
    units |= {unit.path: unit.reason for unit in inputs.release.extra_units if unit.path not in units}
    with compiling(inputs) as pool:
        done = {item.unit: item for item in pool.compile(units)}
        _add_needed(pool, done)
        if not inputs.release.series:
            _add_users(pool, done)
    return tuple(done.values())


def _add_users(pool: Pool, done: dict[str, Object]) -> None:
    """Add the units whose stock code uses hidden symbols of those of `done`, and what they need in turn."""
    for _ in range(_MOST_USERS):
        if not (found := _concerned(pool.inputs, done)):
            return
        _add_user(pool, done, found)
        _add_needed(pool, done)
    _refuse_users(_concerned(pool.inputs, done))


def _concerned(inputs: Inputs, done: Mapping[str, Object]) -> dict[str, frozenset[str]]:
    """Return the hidden symbols that stock code uses and that the overlay has otherwise, with their users."""
    found = users_of(inputs, done.values())
    same = differing.same(inputs, done.values(), found) if found else frozenset[str]()
    return {name: callers for name, callers in found.items() if name not in same}


def _add_needed(pool: Pool, done: dict[str, Object]) -> None:
    """Add the units that define hidden symbols which those of `done` need."""
    while needs := hidden_needs(pool.inputs, [item.path for item in done.values()]):
        symbol = min(needs)
        spelt = demangle([symbol])[symbol]
        found = _definer(pool, symbol, spelt, done, f"defines {spelt}, which stock does not export")
        done[found.unit] = found


def _add_user(pool: Pool, done: dict[str, Object], found: Mapping[str, frozenset[str]]) -> None:
    """Add a unit whose stock code uses hidden symbols of those of `done`, and would not see the overlay's."""
    symbol, users = min(found.items(), key=lambda item: (len(item[1]), item[0]))
    spelt = demangle([symbol, *users])
    tried: list[str] = []
    for user in sorted(users, key=lambda name: (spelt[name].startswith("std::"), len(name))):
        try:
            made = _definer(pool, user, spelt[user], done, f"uses {spelt[symbol]}, which stock does not export")
        except CompileError as error:
            tried += error.cause.splitlines()[1:]
            continue
        done[made.unit] = made
        return
    _refuse_users(found, tried)


def _refuse_users(found: Mapping[str, frozenset[str]], tried: Iterable[str] = ()) -> None:
    """Raise NeedsFullBuildError for hidden symbols that stock code uses; do nothing if there are none."""
    if found:
        raise NeedsFullBuildError(
            "stock code outside the overlay uses hidden symbols of its units",
            cause="\n".join([*_spelt(found), *dict.fromkeys(tried)]),
            remedy="that code was linked to the stock copy and would not see the patch: make its unit compile, change "
            "a function that is exported (TORCH_API), or make a full build",
        )


_SCANNER = Path(__file__).with_name("native") / "uses.c"
#: What compilers append to the names of the parts of a function.
_PART = re.compile(r"(\.(cold|isra|constprop|part|lto_priv|localalias)(\.\d+)*)+$")


def _whole(name: str) -> str:
    """Return the name of the function that a symbol is a part of, such as its cold part."""
    return _PART.sub("", name) if "." in name else name


def _users(
    library: Path, scanner: Path, wanted: Mapping[int, str], own: Collection[str], ranges: Iterable[tuple[int, int]]
) -> dict[str, set[str]]:
    """Return for each hidden symbol the functions of other units that use it.

    Functions of the units are those in `own`, and what lies in `ranges`: the stock unit may have a function that the
    recompiled one lacks, since the patch removes it, or this compiler inlines it.
    """
    every = functions(library)
    places = [address for address, _ in every]
    inside = (every[bisect_left(places, low) : bisect_right(places, high)] for low, high in ranges)
    mine = {*own, *(_whole(name) for part in inside for _, name in part)}
    lines = "\n".join(f"{address:x}" for address in sorted(wanted))
    with library.open("rb") as stream:
        code = [item for item in ELFFile(stream).iter_sections() if item["sh_flags"] & SH_FLAGS.SHF_EXECINSTR]
    sections = [str(item[key]) for item in code for key in ("sh_offset", "sh_size", "sh_addr")]
    done = run([scanner, library, *sections], stdin=lines.encode(), timeout=300)
    found: dict[str, set[str]] = defaultdict(set)
    for line in done.stdout.decode().splitlines():
        site, target = (int(part, 16) for part in line.split())
        at = bisect_right(places, site) - 1
        user = _whole(every[at][1]) if at >= 0 else ""
        if user not in mine:
            found[wanted[target]].add(user)
    return found


def users_of(inputs: Inputs, objects: Iterable[Object]) -> dict[str, frozenset[str]]:
    """Return the hidden symbols of units that stock code outside them uses, with the functions that do, mangled."""
    objects = tuple(objects)
    own = {_whole(name) for item in objects for name in names(item.path).defined}
    strong = set[str]().union(*(names(item.path).of_kind("TDBR") for item in objects))
    found: dict[str, set[str]] = defaultdict(set)
    with tempfile.TemporaryDirectory(prefix="uses-") as scratch:
        scanner = Path(scratch) / "uses"
        command: list[str | Path] = [inputs.toolchain.cxx, "-x", "c", "-std=gnu11", "-O2", _SCANNER, "-o", scanner]
        make(command, f"{_SCANNER.name} does not compile", remedy="set CXX to another compiler")
        for name in inputs.replaceable:
            library = inputs.lib / name
            hidden = (strong & defined(library).keys()) - exported(library).keys()
            found_there = (defined(library)[name] for name in hidden)
            if wanted := {item.address: item.name for item in found_there if item.kind in "tdbr"}:
                ranges = spans(objects, exported(library))
                for symbol, callers in _users(library, scanner, wanted, own, ranges).items():
                    found[symbol] |= callers
    return {symbol: frozenset(callers) for symbol, callers in found.items()}


def _spelt(found: Mapping[str, frozenset[str]]) -> list[str]:
    """Return one line for each hidden symbol: who uses it."""
    plain = demangle({*found, *(user for callers in found.values() for user in callers)})
    return [
        f"{plain[symbol]} is used by {', '.join(sorted(plain[user] for user in callers)[:3])}"
        + (f" and {len(callers) - 3} more" if len(callers) > 3 else "")
        for symbol, callers in sorted(found.items())
    ]
