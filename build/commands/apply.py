"""`apply RELEASE`: a checkout of a release with its series applied, one commit per patch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from build import paths, releases, sources
from build.console import console, note, step
from build.series.apply import apply_series
from build.series.manifest import patches_of
from build.series.show import legend, verdict_table


def apply(
    release: Annotated[str, typer.Argument(help="the PyTorch release, e.g. 2.6.0")],
    source: Annotated[Path | None, typer.Option(help="checkout, tarball or folder to take it from")] = None,
    into: Annotated[Path | None, typer.Option(help="folder of the checkout")] = None,
) -> None:
    """Apply the series of RELEASE in a checkout of its own and show what happened to each hunk."""
    entry = releases.get(release)
    patches = patches_of(release, entry.series)
    tree = sources.acquire(entry, source)
    target = (into or paths.cache("applied") / release).absolute()
    step(f"applying {len(patches)} patches to {release} ({tree.base[:12]})")
    with paths.locked(target, f"the checkout {target}"):
        applied = apply_series(tree.repo, tree.base, patches, target)
    console.print(verdict_table(applied.verdicts, f"{release}: hunks"))
    note(legend(applied.verdicts).replace("\n", "\n   "))
    step(f"{len(applied.changed)} files changed, head {applied.head[:12]}, in {applied.checkout}")
