"""`full.json`: what a full build was made from, how, and what was shown of its wheel."""

from __future__ import annotations

from pathlib import Path

import msgspec

from build.full.plan import Plan
from build.full.toolchains import Toolchain
from build.overlay.model import Check
from build.record import Artifact, Patch, patches_of
from build.series.apply import AppliedTree
from build.series.model import HunkVerdict

#: Increased when a field changes its meaning.
SCHEMA = 1
#: The exit status that stands for a probe that had no stock wheel to run on.
NOT_RUN = -1


class Provenance(msgspec.Struct, frozen=True):
    """All that decides a full build; embedded in the wheel as `multiworld.json`. It names no path of the machine.

    Attributes:
        source: where the sources came from, and how they are known to be the release.
        commit: of the patched tree; it depends on the sources and the patches alone.
        toolchain: `system`, `conda` or `index`.
        compilers: first lines of their `--version`.
        architectures: what the device code is compiled for.
        requires: requirements of the build.
        environment: variables that the project sets.
    """

    schema: int
    project: str
    version: str
    python: str
    source: str
    commit: str
    patches: tuple[Patch, ...]
    toolchain: str
    compilers: tuple[str, ...]
    cuda: str
    architectures: tuple[str, ...]
    requires: tuple[str, ...]
    libraries: tuple[str, ...]
    environment: dict[str, str]


class Shown(msgspec.Struct, frozen=True):
    """The result of a probe: exit statuses on the stock wheel (-1: not run) and on the built one."""

    name: str
    stock: int
    built: int
    as_expected: bool


class FullRecord(msgspec.Struct, frozen=True):
    """The whole of `full.json`.

    Attributes:
        copied: libraries of the build machine that are in the wheel.
        installed: the build's environment, `name==version`.
        steps: steps of ninja, and the seconds of all of them on one core.
    """

    provenance: Provenance
    wheel: Artifact
    platform: str
    copied: tuple[str, ...]
    installed: tuple[str, ...]
    checks: tuple[Check, ...]
    probes: tuple[Shown, ...]
    verdicts: tuple[HunkVerdict, ...]
    steps: int
    seconds: float


def provenance(plan: Plan, source: str, patched: AppliedTree, tools: Toolchain) -> Provenance:
    project = plan.project
    return Provenance(
        schema=SCHEMA,
        project=project.name,
        version=project.version,
        python=project.python,
        source=source,
        commit=patched.head,
        patches=patches_of(project.patches),
        toolchain=plan.kind.value,
        compilers=tools.identity,
        cuda=project.cuda,
        architectures=tuple(map(str, project.targets)),
        requires=project.requires,
        libraries=project.pins,
        environment=dict(project.environment),
    )


def place(folder: Path, python: str) -> Path:
    return folder / f"full-{python}.json"
