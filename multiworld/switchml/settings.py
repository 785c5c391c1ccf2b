"""Settings of the backend ``switchml``: what the program says with ``configure``, else the environment, else defaults.

All ranks of a process group need the same ``missing`` and ``failure``; that is checked when the group is made.
"""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from multiworld.config import is_duration
from multiworld.errors import InvalidArgument

_PREFIX = "MULTIWORLD_SWITCHML_"
_given: dict[str, Any] = {}


class Otherwise(str, enum.Enum):
    """The reaction when the switch cannot do it: an error, or Gloo does it. A member equals its text."""

    ERROR = "error"
    GLOO = "gloo"

    __str__ = str.__str__


def default_library() -> Path:
    """Where ``compile`` puts the compiled shim: the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "multiworld", "switchml", "libmultiworld_switchml.so")


@dataclass(frozen=True)
class Settings:
    """The settings that a process group is made with.

    Args:
        library: the compiled shim.
        config: configuration file of the client library; empty for those that it looks for itself. Its ``rank`` and
            ``num_workers`` do not matter: they are those of the process group.
        missing: what happens if a rank has no client library, or it does not start there.
        failure: what happens to an all-reduce that the switch fails to do, and to those after it. ``GLOO`` costs every
            all-reduce a confirmation by all ranks, over Gloo, and a copy.
        timeout: seconds that an all-reduce may take on the switch; None for the timeout of the process group, or half
            of it where failed ones are repeated.
    """

    library: Path
    config: str = ""
    missing: Otherwise = Otherwise.ERROR
    failure: Otherwise = Otherwise.ERROR
    timeout: float | None = None

    def seconds(self, of_group: float) -> float:
        """Return how long an all-reduce may take, where the process group has a timeout of ``of_group`` seconds."""
        if self.timeout is not None:
            return self.timeout
        return of_group / 2 if self.failure is Otherwise.GLOO else of_group


def configure(**settings: Any) -> None:
    """Set what process groups that are made from now on use; call it before ``init_process_group``, on all ranks alike.

    Args:
        settings: fields of ``Settings``; None takes one back.

    Raises:
        InvalidArgument: an unknown name, or a value that cannot be right.
    """
    known = {field.name for field in fields(Settings)}
    if unknown := sorted(settings.keys() - known):
        raise InvalidArgument(what=f"no setting {', '.join(unknown)}", remedy=f"use {', '.join(sorted(known))}")
    checked = {name: _checked(name, value) for name, value in settings.items() if value is not None}
    for name in settings:
        _given.pop(name, None)
    _given.update(checked)


def current() -> Settings:
    """The settings as they are now.

    Raises:
        InvalidArgument: a variable of the environment cannot be right.
    """
    found: dict[str, Any] = {"library": default_library()}
    for field in fields(Settings):
        if text := os.environ.get(_PREFIX + field.name.upper()):
            found[field.name] = _checked(field.name, text)
    return Settings(**{**found, **_given})


def _checked(name: str, value: Any) -> Any:
    try:
        if name == "library":
            return Path(value)
        if name == "config":
            return os.fspath(value)
        if name == "timeout":
            seconds = float(value)
            if is_duration(seconds):
                return seconds
            raise ValueError(seconds)  # noqa: TRY301 - said once, below
        return Otherwise(value)
    except (TypeError, ValueError):
        wanted = {"library": "a path", "config": "a path", "timeout": "a number of seconds above 0"}
        remedy = f"give {wanted.get(name, 'error or gloo')}"
        raise InvalidArgument(what=f"switchml: {name} cannot be {value!r}", remedy=remedy) from None
