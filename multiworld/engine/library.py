"""The compiled part of the package, ``multiworld/_engine.abi3.so``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import torch

from multiworld.errors import BackendUnavailable
from multiworld.matching.protocol import CODES


def module() -> Any:
    """Return the compiled module.

    Raises:
        BackendUnavailable: there is none.
    """
    if _module is None:
        raise BackendUnavailable(
            what=f"the compiled engine, which moves the data of all worlds, cannot be loaded: {_why}",
            cause="this is a source tree whose engine was not compiled, or an installation that is not complete",
            remedy="install multiworld again, where there is no wheel with a C++20 compiler; in a source tree run "
            "`python hatch_build.py`",
        )
    return _module


def launcher() -> Any:
    """Make the launcher of a communicator on a device; see ``engine/launch/launcher.h``."""
    return module().Launcher()


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


def know_watchers(watchers: tuple[Callable[[], object], ...]) -> None:
    """Tell the compiled module what says whether something in the calling thread has a say in what is done there."""
    if _module is not None:
        _module.setup_watchers(watchers)


def _load() -> tuple[Any, str]:
    try:
        return importlib.import_module("multiworld._engine"), ""
    except ImportError as error:
        return None, str(error)


_module, _why = _load()
