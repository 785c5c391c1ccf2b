"""The compiled part of the package, ``multiworld/_engine.abi3.so``."""

from __future__ import annotations

import importlib
import os
from typing import Any, Final

import torch

from multiworld.errors import InvalidArgument
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
    """Return the compiled module that new worlds use; None if there is none, or ``MULTIWORLD_ENGINE=python`` is set."""
    if choice() == "compiled" and _module is None:
        what, cause = (
            f"{CHOICE} is 'compiled', and there is no compiled engine",
            "multiworld was built without a compiler",
        )
        raise InvalidArgument(what=what, cause=cause, remedy="install a C++ compiler, then multiworld again")
    return None if choice() == "python" else _module


def _load() -> Any:
    try:
        module = importlib.import_module("multiworld._engine")
    except ImportError:
        return None
    module.setup(torch.Tensor, torch.nn.Parameter, CODES, torch.strided)
    return module


_module: Final = _load()
