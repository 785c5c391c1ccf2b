"""`nox -s bench -- porting [--real]`: the accuracy of ports, against git and patch; see docs/porting.md."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from build import releases
from build.cli import guarded, only, run
from build.console import note
from build.errors import ProbeError, UsageError
from build.git import Git
from build.porting.trees import Tree
from build.sources import TreePurpose
from build.sources.acquire import cached_tree
from docs.bench.porting import generated
from docs.bench.porting import real as real_ports


def porting(
    names: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    real: Annotated[bool, typer.Option("--real", help="patches that Debian's maintainers ported")] = False,
    jobs: Annotated[int, typer.Option(help="--real: processes at once, default one a core", min=0)] = 0,
) -> None:
    """Port generated patches, or those of Debian's maintainers, and judge the promised figures."""
    if names:
        raise UsageError(
            f"the benchmark porting runs alone, not with {' '.join(names)}",
            remedy=f"nox -s bench -- porting, then nox -s bench -- {' '.join(names)}",
        )
    if jobs and not real:
        raise UsageError("--jobs is for the benchmark of real ports", remedy="nox -s bench -- porting --real")
    if not (real_ports.bench(jobs) if real else _generated()):
        raise ProbeError("promised figures of ports are missed")


def _generated() -> bool:
    """Run the benchmark over a cached source tree; without one, print a note and pass."""
    trees = [tree for entry in releases.load().values() if (tree := cached_tree(entry, TreePurpose.OVERLAY))]
    if not trees:
        note("porting: no source tree is cached; `nox -s apply-2.6.0` fetches one")
        return True
    newest = trees[-1]
    return generated.bench(Tree(Git(newest.repo), newest.base, f"PyTorch {newest.release.version}"))


if __name__ == "__main__":
    sys.exit(run(lambda: guarded(only(porting))))
