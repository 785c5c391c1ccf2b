"""The inputs of a full build, for any project that setuptools builds with CMake; `torch` is one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from build.full.architectures import Targets
from build.series.model import PatchFile

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Sources:
    """A git work tree, which is only read; the commit that patches apply to; what it is, for the record."""

    repo: Path
    base: str
    identity: str


@dataclass(frozen=True, slots=True)
class UnitKind:
    """Translation units of one kind, to estimate a build before it is configured.

    Attributes:
        name: e.g. `host C++`.
        patterns: globs of their files, from the top of the tree.
        seconds: what one takes on one core, measured; for device code, per architecture.
        device: whether it is compiled once per architecture.
        typical: how many there are, for a tree that is not here yet.
        generated: how many more the build generates.
    """

    name: str
    patterns: tuple[str, ...]
    seconds: float
    device: bool = False
    typical: int = 0
    generated: int = 0

    def count(self, tree: Path | None) -> int:
        if tree is None:
            return self.typical
        found = {path for pattern in self.patterns for path in tree.glob(pattern)}
        return self.generated + sum("test" not in path.relative_to(tree).parts for path in found)


@dataclass(frozen=True, slots=True)
class External:
    """A distribution with libraries that the wheel does not contain; so have those that it requires.

    Attributes:
        distribution: its name; the wheel gets it as a requirement.
        version: the exact version that is compiled against and required.
        marker: environment marker of the requirement.
    """

    distribution: str
    version: str
    marker: str = ""

    @property
    def pin(self) -> str:
        return f"{self.distribution}=={self.version}"

    @property
    def requirement(self) -> str:
        return f"{self.pin}; {self.marker}" if self.marker else self.pin


@dataclass(frozen=True, slots=True)
class Probe:
    """A program that shows one defect: it must fail on the stock wheel, if there is one, and pass on the built wheel.

    Attributes:
        name: what it shows.
        command: program and arguments; `{python}` is the interpreter with the wheel.
        stock: likewise on the stock wheel, default the same; a test suite may have to be told which it runs on.
        stock_fails: whether `stock` fails on the stock wheel, as a probe does; a suite that knows stock passes.
    """

    name: str
    command: tuple[str, ...]
    stock: tuple[str, ...] = ()
    stock_fails: bool = True


@dataclass(frozen=True, slots=True)
class Project:
    """A project and how its wheel is built.

    Attributes:
        name: name of its distribution.
        version: version of the wheel, with a local label that says who built it, e.g. `2.6.0+cu124.mw1`.
        sources: returns the tree; called after the plan was accepted, since a clone takes long.
        tree: an earlier run's tree, to count units in for the plan; None if there is none.
        patches: applied in this order.
        python: CPython version, e.g. `3.11`.
        cuda: version of the CUDA toolkit, empty for a project without device code.
        targets: architectures to compile for.
        requires: requirements of the build itself, pinned; cmake and ninja too.
        externals: what the wheel finds in other distributions.
        environment: variables of the build.
        units: kinds of units, for the plan.
        disk: bytes that sources, objects and wheel need.
        memory_per_job: bytes of memory that one compiler takes at its peak.
        min_gcc: the oldest g++ that compiles it.
        probes: what the wheel must show.
        stock: returns a wheel without the patches; None where there is none.
    """

    name: str
    version: str
    sources: Callable[[], Sources]
    python: str
    tree: Path | None = None
    patches: tuple[PatchFile, ...] = ()
    cuda: str = ""
    targets: Targets = ()
    requires: tuple[str, ...] = ("setuptools", "wheel", "cmake", "ninja")
    externals: tuple[External, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    units: tuple[UnitKind, ...] = ()
    disk: int = _GIB
    memory_per_job: int = 2 * _GIB
    min_gcc: int = 9
    probes: tuple[Probe, ...] = ()
    stock: Callable[[], Path] | None = None

    @property
    def pins(self) -> tuple[str, ...]:
        return tuple(item.pin for item in self.externals)
