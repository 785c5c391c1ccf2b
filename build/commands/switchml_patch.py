"""`switchml-patch`: write the `switchml` series, with the values of its build variables, as one patch."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from build import paths
from build.console import note, step
from build.series import manifest as manifests
from build.series.parameters import ignored, parse_assignments, resolve
from build.series.render import one_patch, places, render

#: The name of the file that the original's Makefile writes.
_FILE = "switchml_pytorch.patch"


def switchml_patch(
    variables: Annotated[list[str] | None, typer.Argument(metavar="NAME=VALUE", help="build variables")] = None,
    release: Annotated[str, typer.Option(help="the PyTorch release")] = "1.7.1",
    folder: Annotated[Path | None, typer.Option(help="what relative paths are relative to, default here")] = None,
) -> None:
    """Write one patch for `git apply`, for a client library that was built with these variables."""
    series = manifests.folder("switchml")
    manifest = manifests.load(series)
    patches = manifests.patches_of(release, ["switchml"])
    given = parse_assignments(variables or [], manifest.parameter)
    values = resolve(manifest.parameter, given, (folder or Path.cwd()).absolute())
    for text in ignored(manifest.parameter, given, values):
        note(text)
    placed = {name: values[name] for patch in patches for name in places(patch)}
    rendered = [render(patch, values) for patch in patches]
    target = Path(next(values[item.name] for item in manifest.parameter if item.output)) / _FILE
    with paths.atomic_write(target) as part:
        part.write_bytes(one_patch(f"SwitchML's all-reduce offload for PyTorch {release}", rendered, placed))
    step(f"in a checkout of PyTorch {release}: git apply {shlex.quote(str(target))}")
