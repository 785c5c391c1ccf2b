"""Find what the units of an overlay register when they are loaded: stock has registered the same names already."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from build.errors import OverlayCheckError
from build.overlay.model import Object
from build.overlay.relocations import Part, read
from build.overlay.symbols import demangle

#: What compilers call the code of a unit that runs when it is loaded.
_INITIALISER = "_GLOBAL__sub_I"
#: The registration that `native/handlers.cpp` makes safe.
_HANDLER = "c10d::control_plane::registerHandler("
#: Registrations of PyTorch for which the first one of a name counts, or each of them. Others replace what stock has.
_UNSAFE = (
    "torch::Library::_def(",
    "torch::Library::_impl(",
    "torch::Library::_fallback(",
    "torch::detail::class_base::class_base(",
    "torch::RegisterOperators::",
    "torch::jit::registerOperator(",
    "torch::jit::registerPostPass(",
    "torch::jit::registerPrePass(",
    "c10::RegisterOperators::",
    "c10::Dispatcher::addRegistrationListener(",
    "c10::Dispatcher::registerDef",
    "c10::Dispatcher::registerImpl",
    "c10::Dispatcher::registerLibrary",
    "c10::Registry<",
    "c10d::register_dma_connectivity_detector(",
    "c10d::registerProcessGroup",
    "at::RegisterCUDAHooks",
)


def at_load(paths: Iterable[Path]) -> frozenset[str]:
    """Return the names that static initialisers of objects reach, also by functions whose address they take."""
    objects = [read(path) for path in paths]
    defined: dict[str, list[Part]] = defaultdict(list)
    for item in objects:
        for name, part in item.defined.items():
            defined[name].append(part)
    edges = {part: targets for item in objects for part, targets in item.reached.items()}
    starts = (parts for item in objects for name, parts in item.local.items() if name.startswith(_INITIALISER))
    seen, found = {part for parts in starts for part in parts}, set[str]()
    waiting = list(seen)
    while waiting:
        targets = edges.get(waiting.pop(), set())
        found |= {target for target in targets if isinstance(target, str)}
        parts = (part for target in targets for part in ([target] if isinstance(target, Part) else defined[target]))
        more = set(parts) - seen
        seen |= more
        waiting += more
    return frozenset(found)


def handler_registration(objects: Sequence[Object]) -> str:
    """Return the mangled name of the function that registers handlers, empty when no object calls it when loaded.

    Raises:
        OverlayCheckError: the objects register something else that stock has registered.
    """
    reached = at_load(item.path for item in objects)
    spelt = demangle(reached) if reached else {}
    # An instance of a template has its return type before its name.
    unsafe = sorted(name for name in spelt.values() if any(name.startswith(it) or f" {it}" in name for it in _UNSAFE))
    if unsafe := [name for name in unsafe if not name.startswith("c10::Registry<") or ">::Register(" in name]:
        raise OverlayCheckError(
            f"the overlay would register twice: {', '.join(unsafe)}",
            cause="a unit in the overlay registers a name when it is loaded, and stock has already registered it",
            remedy="move the change to a unit without registrations: functions that a registration calls can be "
            "elsewhere; or make a full build",
        )
    return next((symbol for symbol, name in spelt.items() if name.startswith(_HANDLER)), "")
