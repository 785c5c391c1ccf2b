"""``switchml`` as a backend of ``torch.distributed``, and in place of ``gloo`` for programs that say ``gloo``."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from multiworld.switchml.errors import SwitchMLError
from multiworld.switchml.group import NAME, create

_HELPER = "_new_process_group_helper"
_GLOO = ("gloo", "cpu:gloo")
_original: Callable[..., Any] | None = None


def register() -> None:
    """Make ``switchml`` known to ``torch.distributed``; once, however often it is called."""
    if NAME.upper() not in dist.Backend._plugins:
        with warnings.catch_warnings():  # the devices are part of what is asked for since some release
            warnings.simplefilter("ignore")
            dist.Backend.register_backend(NAME, create, devices=["cpu", "cuda"])


def install() -> None:
    """From now on, process groups of the backend ``gloo`` or ``cpu:gloo`` are made by ``switchml``.

    Such a group still calls itself ``gloo`` in ``torch.distributed.get_backend``. A group with several backends
    (``cpu:gloo,cuda:nccl``) stays as it is.

    Raises:
        SwitchMLError: this release of torch makes process groups in another way.
    """
    global _original
    register()
    if _original is not None:
        return
    helper = getattr(distributed_c10d, _HELPER, None)
    if helper is None or "backend" not in inspect.signature(helper).parameters:
        what = "install() does not know how this release of torch makes process groups"
        raise SwitchMLError(what=what, remedy='say init_process_group("switchml") in the program')
    _original = helper
    setattr(distributed_c10d, _HELPER, _instead_of_gloo(helper))


def uninstall() -> None:
    """Take ``install`` back; groups that exist stay as they are."""
    global _original
    if _original is not None:
        setattr(distributed_c10d, _HELPER, _original)
        _original = None


def _instead_of_gloo(helper: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(helper)

    @functools.wraps(helper)
    def made(*args: Any, **named: Any) -> Any:
        bound = signature.bind(*args, **named)
        asked = bound.arguments["backend"]
        if str(asked).lower() not in _GLOO:
            return helper(*args, **named)
        bound.arguments["backend"] = dist.Backend(NAME)
        result = helper(*bound.args, **bound.kwargs)
        group, world = result[0], distributed_c10d._world
        if group in world.pg_map:  # `get_backend` and the like say what the program asked for
            world.pg_map[group] = (asked, world.pg_map[group][1])
            world.pg_backend_config[group] = str(distributed_c10d.BackendConfig(asked))
        return result

    return made
