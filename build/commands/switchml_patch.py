"""`switchml-patch`: write the `switchml` series, with the values of its build variables, as one patch."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from build import paths
from build.console import step
from build.series import manifest as manifests
from build.series.parameters import render, resolve

#: The name of the file that the original's Makefile writes.
_FILE = "switchml_pytorch.patch"


def switchml_patch(
    variables: Annotated[list[str] | None, typer.Argument(metavar="NAME=VALUE", help="build variables")] = None,
    release: Annotated[str, typer.Option(help="the PyTorch release")] = "1.7.1",
    folder: Annotated[Path | None, typer.Option(help="what relative paths are relative to, default here")] = None,
) -> None:
    """Write one patch for `git apply`, for a client library that was built with these variables."""
    parameters = manifests.load(manifests.folder("switchml")).parameter
    patches = manifests.patches_of(release, ["switchml"])
    values = resolve(parameters, variables or [], (folder or Path.cwd()).absolute())
    diffs = b"".join(patch.diff for patch in patches)
    placed = [f"{name}={value}" for name, value in values.items() if b"@%s@" % name.encode() in diffs]
    head = "\n".join([f"SwitchML's all-reduce offload for PyTorch {release}", *placed, ""])
    target = Path(next(values[item.name] for item in parameters if item.output)) / _FILE
    with paths.atomic_write(target) as part:
        part.write_bytes(os.fsencode(head) + b"\n" + b"".join(render(patch, values).diff for patch in patches))
    step(f"in a checkout of PyTorch {release}: git apply {shlex.quote(str(target))}")
