"""The compiled part of the package, ``multiworld/_engine.abi3.so``."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final

import torch

from multiworld.errors import BackendUnavailable, InvalidArgument
from multiworld.matching.protocol import CODES

#: names the engine of new worlds: ``python`` or ``compiled``; unset, it is the compiled one where there is one
CHOICE: Final = "MULTIWORLD_ENGINE"


def choice() -> str:
    """Return what ``MULTIWORLD_ENGINE`` says; empty if it is not set.

    Raises:
        InvalidArgument: it has a value that is no engine.
    """
    said = os.environ.get(CHOICE, "")
    if said not in ("", "python", "compiled"):
        remedy = "unset it, or set it to 'python' or 'compiled'"
        raise InvalidArgument(what=f"{CHOICE} is {said!r}", cause="there is no such engine", remedy=remedy)
    return said


def compiled() -> Any:
    """Return the compiled module, which moves the data of new worlds; None if ``MULTIWORLD_ENGINE=python`` is set.

    Raises:
        InvalidArgument: the variable names no engine.
        BackendUnavailable: see ``native``.
    """
    module = native()
    return None if choice() == "python" else module


def native() -> Any:
    """Return the compiled module; whatever moves the data, heartbeats need it.

    Raises:
        BackendUnavailable: it was not compiled, or cannot be loaded here.
    """
    if _module is None:
        raise BackendUnavailable(
            what="multiworld has no compiled part here",
            cause="its source tree was not built, or it was built for another platform",
            remedy="install a C++ compiler, then multiworld again; in a source tree, run `python hatch_build.py`",
        )
    return _module


def launcher() -> Any:
    """Make the launcher of a communicator on a device; see ``engine/launch/launcher.h``."""
    return _module.Launcher()


def launch_functions() -> Sequence[str]:
    """The functions of CUDA and NCCL that a launcher takes; none if there is no compiled module."""
    return () if _module is None else _module.LAUNCH_FUNCTIONS


def know_plain_tensors(
    types: Iterable[type], kind_of: Callable[[torch.Tensor], Hashable], kinds: dict[Hashable, bool]
) -> None:
    """Tell the compiled module which tensors it may take as they are.

    Args:
        types: of tensors whose class changes nothing.
        kind_of: tells kinds of tensors apart.
        kinds: those that were seen to be plain, True for those on the CPU; it grows.
    """
    if _module is not None:
        _module.setup(dict.fromkeys(types, True), kind_of, kinds, CODES)


def _load() -> Any:
    try:
        return importlib.import_module("multiworld._engine")
    except ImportError:
        return None


_module: Final = _load()
