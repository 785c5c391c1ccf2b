"""Compare the compiler's input for changed units, with the patches and without: the same is refused."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from build.errors import PatchError
from build.overlay.model import Inputs
from build.overlay.objects import jobs, override_headers, preprocess
from build.overlay.touched import bare
from build.process import run_together

#: Of the preprocessor: the file that the next line is from.
_MARKER = re.compile(r'# \d+ "([^"]*)"')


def _preprocessed(inputs: Inputs, stock: Path, unit: str, *options: str) -> tuple[bytes, bytes]:
    """Return what the compiler gets of a unit, without the patches and with them."""
    with tempfile.TemporaryDirectory(prefix="effect-") as scratch:
        (none := Path(scratch, "none")).mkdir()
        override_headers(inputs, Path(scratch, "changed"))
        before = preprocess(replace(inputs, tree=stock, changed=()), unit, none, *options)
        return before, preprocess(inputs, unit, Path(scratch, "changed"), *options)


def expanded(inputs: Inputs, stock: Path, unit: str) -> tuple[str, str]:
    """Return the text of a unit with its macros expanded and without headers, before the patches and after them."""
    before, after = (data.decode("utf-8", "surrogateescape") for data in _preprocessed(inputs, stock, unit))
    return _own(before, unit), _own(after, unit)


def _own(text: str, unit: str) -> str:
    """Return the lines of preprocessed text that come from the unit itself, as the line markers say."""
    own, lines = False, []
    for line in text.splitlines():
        if marker := _MARKER.match(line):
            own = marker[1].endswith(f"/{unit}")
        elif own:
            lines.append(line)
    return "\n".join(lines)


def _same(inputs: Inputs, stock: Path, unit: str) -> bool:
    """Return whether a patch changes more than comments of a unit, and the compiler gets the same."""
    old, new = inputs.originals[unit], (inputs.tree / unit).read_text(encoding="utf-8", errors="surrogateescape")
    if bare(old).split() == bare(new).split():
        return False
    before, after = _preprocessed(inputs, stock, unit, "-P")
    return before == after


def require(inputs: Inputs) -> None:
    """Refuse changed units that are the same with the patches and without, but for comments.

    Raises:
        PatchError: there is such a unit; the message names each.
        CompileError: a unit cannot be preprocessed.
    """
    if inputs.stock is None:
        return
    changed = [unit for unit in inputs.units if inputs.originals.get(unit)]
    tasks = [partial(_same, inputs, inputs.stock, unit) for unit in changed]
    found = run_together(tasks, jobs(inputs.jobs)) if tasks else []
    _refuse([unit for unit, same in zip(changed, found, strict=True) if same])


def _refuse(units: Iterable[str]) -> None:
    if units := list(units):
        raise PatchError(
            f"the patch has no effect in the wheel on {', '.join(units)}",
            cause="what the compiler gets of it is the same with the patch and without: the change is in code that "
            "these wheels are built without, such as that for another device",
            remedy="take the change out of the patch; or say how the wheel was built: --define NAME=1",
        )
