"""From a patched tree and the official wheel to an overlay: one public function."""

from __future__ import annotations

from pathlib import Path

from build.console import counted, step
from build.errors import NeedsFullBuildError
from build.overlay import checks, differing, layout
from build.overlay.closure import compile_closure
from build.overlay.flags import recorded_flags, said_flags
from build.overlay.link import link, soname
from build.overlay.model import Check, Inputs, Object, Overlay
from build.overlay.symbols import defined, names
from build.runtime.multiworld_torch_overlay._load import build_id
from build.seals import sha256_of


def _check_owner(inputs: Inputs, objects: tuple[Object, ...]) -> None:
    """Refuse units of libtorch_python in an overlay that is for all Python versions."""
    if inputs.per_python:
        return
    # The functions and variables that only one unit defines.
    own = {item.unit: names(item.path).of_kind("TDBR") for item in objects}
    every = set[str]().union(*own.values())
    theirs = every & defined(inputs.lib / "libtorch_python.so").keys()
    cuda = every & defined(inputs.lib / "libtorch_cuda.so").keys()
    wrong = [unit for unit, mine in own.items() if len(mine & theirs) > len(mine & cuda)]
    if wrong:
        what = f"units of libtorch_python cannot be in an overlay: {', '.join(wrong)}"
        raise NeedsFullBuildError(what, remedy="take the change out of the patches, or make a full build")


def build_overlay(inputs: Inputs, target: Path) -> Overlay:
    """Compile, link and check an overlay.

    Raises:
        NeedsFullBuildError: the patches change what an overlay cannot replace.
        CompileError: a unit does not compile or link.
        OverlayCheckError: a check failed; then `target` has no new library.
    """
    checks.require([checks.check_made_for(inputs), checks.check_stock(inputs)])
    step(f"compiling {counted(len(inputs.units), 'patched unit')}, and units with hidden symbols that are needed")
    differing.require_effect(inputs)
    objects = compile_closure(inputs)
    _check_owner(inputs, objects)
    checks.require([checks.check_of_wheel(inputs, objects)])
    step("linking against the official wheel")
    safe = {name: f"declared safe: {why}" for name, why in inputs.safe_headers.items()}
    headers = sorted(filter(layout.is_header, inputs.changed))
    said = [f"{name}: {safe.get(name, 'no unit outside the overlay includes it')}" for name in headers]
    seen = "; ".join(said) or "the patches change no header"
    path = link(inputs, objects, target / soname(inputs.release))
    proven = (
        checks.check_made_for(inputs),
        Check("units outside the overlay see no changed header", True, seen),
        Check("all undefined symbols resolve against the exact wheel", True, "linked with -z defs"),
        checks.check_complete(inputs, path, objects),
        checks.check_age(inputs, path),
    )
    try:
        checks.require(proven)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    ids = inputs.release.wheel.libtorch_cuda_build_ids
    return Overlay(
        path=path,
        soname=path.name,
        sha256=sha256_of(path),
        build_id=build_id(path),
        made_for={python: item for python, item in ids.items() if python == inputs.python or not inputs.per_python},
        objects=objects,
        replaced=tuple(sorted(checks.replaced_symbols(inputs, path))),
        flags=(*recorded_flags(inputs.release), *said_flags(inputs.defines)),
        checks=proven,
        python=inputs.python if inputs.per_python else "",
    )
