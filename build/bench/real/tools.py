"""Run the compared tools on one real patch."""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from build.bench.corpus.model import Case
from build.bench.corpus.tools import NEW_SIDE, OTHERS, set_up
from build.bench.real.cases import RealCase
from build.bench.real.judge import base_files
from build.porting.engine import PatchPort, port_series
from build.porting.trees import Tree


@dataclass(frozen=True, slots=True)
class Ported:
    """What this project's engine made of a patch: the files as it leaves them, its verdicts, and the processor time."""

    files: Mapping[str, bytes]
    port: PatchPort
    seconds: float


def ours(case: RealCase) -> Ported:
    start = _processor()
    port = port_series([case.patch], case.old, case.new)[0]
    seconds = _processor() - start
    files = base_files(case)
    for path, state in port.files.items():
        if state is None:
            files.pop(path, None)
        else:
            files[path] = state.data
    return Ported(files, port, seconds)


def others(case: RealCase) -> dict[str, dict[str, bytes]]:
    """Return what each of the other tools made of the patch, written as git writes it, by the tool's name."""
    with tempfile.TemporaryDirectory(prefix="multiworld-bench-") as folder:
        old, new, patched = (_files(tree, case.paths) for tree in (case.old, case.new, case.patched))
        bench = set_up(Case(case.patch.name, old, new, patched, ()), Path(folder), NEW_SIDE)
        return {name: tool(bench) for name, tool in OTHERS.items()}


def _files(tree: Tree, paths: frozenset[str]) -> dict[str, bytes]:
    states = {path: tree.read(path) for path in paths}
    return {path: state.data for path, state in states.items() if state is not None}


def _processor() -> float:
    """Return the processor time of this process and of the commands that it ran, in seconds."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
