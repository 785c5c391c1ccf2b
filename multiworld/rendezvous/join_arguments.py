"""The arguments of ``join``, checked before anything is opened."""

from __future__ import annotations

import importlib
import json
import os
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch

from multiworld.config import (
    DEFAULT_MAX_MESSAGE_BYTES,
    Heartbeat,
    NetworkSettings,
    OnCancel,
    WorldConfig,
    is_duration,
    whole_number,
)
from multiworld.errors import BackendUnavailable, InvalidArgument, told_of
from multiworld.matching.collective_plan import MAX_MEMBERS

BACKENDS = ("gloo", "nccl", "torch-nccl")
#: limit for a world's name as JSON: the greeting has it in a line of bounded length
MAX_NAME_BYTES = 3000


@dataclass(frozen=True, slots=True)
class Defaults:
    """The defaults of ``join``; fields as in ``WorldConfig``. Raises ``InvalidArgument`` for what cannot be right."""

    address: str | None
    op_timeout: float
    heartbeat: Heartbeat
    network: NetworkSettings

    def __post_init__(self) -> None:
        address: Any = self.address
        heartbeat: Any = self.heartbeat
        if address is not None and (not isinstance(address, str) or not address):
            raise _invalid(f"address is {address!r}, not text", "pass a local address, or None")
        check_seconds("op_timeout", self.op_timeout)
        if not isinstance(heartbeat, Heartbeat):
            raise _invalid(f"heartbeat is {heartbeat!r}", "pass a Heartbeat(interval, suspect_after, lost_after)")


def checked_config(
    defaults: Defaults,
    name: str,
    rank: int | None,
    size: int | None,
    backend: str,
    device: torch.device | str | None,
    address: str | None,
    op_timeout: float | None,
    join_timeout: float,
    heartbeat: Heartbeat | None,
    resize: bool = False,
    on_cancel: OnCancel = "break",
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    grow: bool = False,
) -> WorldConfig:
    """All settings of a membership, or a typed error that says which is wrong.

    The arguments are those of ``MultiWorld.join``; None takes the default. ``resize`` is only checked. With ``grow``
    there is no rank yet: it is -1, and the size 0.

    Raises:
        InvalidArgument: name, rank, size or a timeout cannot be right.
        BackendUnavailable: the backend is unknown, or cannot work here.
        BackendFailed: the environment is set otherwise than the backend needs it.
    """
    with told_of(str(name)[:40], None):
        if not isinstance(name, str) or not name or "\n" in name:
            raise _invalid(f"{name!r} is not a valid name for a world", "pass a non-empty string in one line")
        if len(json.dumps(name)) > MAX_NAME_BYTES:
            raise _invalid(f"a name of {len(name)} characters is too long", f"pass at most {MAX_NAME_BYTES}")
    with told_of(name, whole_number(rank)):
        if not isinstance(grow, bool):
            raise _invalid(f"grow is {grow!r}", "pass True or False")
        if grow and (rank, size, resize) != (None, None, False):
            raise _invalid("grow=True with rank, size or resize", "leave them out: the members give us the next rank")
        rank, size = (-1, 0) if grow else checked_place(rank, size)
        given: dict[str, Any] = {"address": address, "op_timeout": op_timeout, "heartbeat": heartbeat}
        chosen = replace(defaults, **{what: value for what, value in given.items() if value is not None})
        check_seconds("join_timeout", join_timeout)
        if not isinstance(resize, bool):
            raise _invalid(f"resize is {resize!r}", "pass True or False")
        if on_cancel not in get_args(OnCancel):
            raise _invalid(f"on_cancel is {on_cancel!r}", "pass 'break' or 'finish'")
        place = _checked_device(name, rank, backend, device)
        length = whole_number(max_message_bytes)
        if length is None or length < 1:
            raise _invalid(f"max_message_bytes is {max_message_bytes!r}", "pass a whole number of bytes above 0")
    return WorldConfig(
        name,
        rank,
        size,
        backend=backend,
        device=place,
        address=chosen.address,
        op_timeout=chosen.op_timeout,
        join_timeout=join_timeout,
        heartbeat=chosen.heartbeat,
        max_message_bytes=length,
        network=chosen.network,
        on_cancel=on_cancel,
    )


def checked_place(rank: int | None, size: int | None) -> tuple[int, int]:
    """Our rank and the number of members, each that of the environment if None; raises ``InvalidArgument``."""
    rank = _from_environment("RANK", "rank") if rank is None else rank
    size = _from_environment("WORLD_SIZE", "size") if size is None else size
    place, members = whole_number(rank), whole_number(size)
    if members is None or not 1 <= members <= MAX_MEMBERS:
        raise _invalid(f"size {size!r} is not in 1..{MAX_MEMBERS}", "pass the number of members")
    if place is None or not 0 <= place < members:
        raise _invalid(f"rank {rank!r} is not in 0..{members - 1}", "pass a whole number: this member's place, from 0")
    return place, members


def check_seconds(what: str, value: object) -> None:
    """Raise ``InvalidArgument`` if ``value`` is no duration."""
    if not is_duration(value):
        raise _invalid(f"{what} is {value!r}", "pass seconds above 0; math.inf waits without a limit")


def _from_environment(variable: str, what: str) -> int:
    try:
        return int(os.environ[variable])
    except (KeyError, ValueError):
        missing = f"{what} is not given, and {variable} is not set to a number"
        raise _invalid(missing, f"pass {what}=, or launch with torchrun") from None


def _checked_device(name: str, rank: int, backend: str, device: torch.device | str | None) -> str:
    if not isinstance(backend, str) or backend not in BACKENDS:
        raise BackendUnavailable(what=f"unknown backend {backend!r}", cause=f"known are {', '.join(BACKENDS)}")
    if backend == "gloo":
        place = _device("cpu" if device is None else device)
        if place.type == "meta":
            raise _invalid("device 'meta' has no memory", "pass the device of the tensors")
        if place.type == "cuda" and not torch.cuda.is_available():
            _require("gloo", f"torch sees no CUDA device, but device={str(place)!r}")
        return str(place)
    choice = importlib.import_module("multiworld.backends.choice")
    _require(backend, choice.unavailable(backend))
    place = _cuda_device(backend, device)
    choice.settle_environment(backend, name, rank)
    return str(place)


def _cuda_device(backend: str, device: torch.device | str | None) -> torch.device:
    """The device with its index; by default the calling thread's."""
    chosen = torch.device("cuda") if device is None else _device(device)
    if chosen.type != "cuda":
        raise _invalid(f"device {chosen} with backend {backend!r}", "pass a CUDA device, or backend='gloo'")
    index, count = torch.cuda.current_device() if chosen.index is None else chosen.index, torch.cuda.device_count()
    if index >= count:
        cause = f"this process has {count}: cuda:0 to cuda:{count - 1}; CUDA_VISIBLE_DEVICES decides which"
        remedy, what = "pass another device=, or make it visible to this process", f"device cuda:{index} is not there"
        raise BackendUnavailable(what=what, cause=cause, remedy=remedy)
    return torch.device("cuda", index)


def _device(device: torch.device | str) -> torch.device:
    """Parse ``device``; torch's own error would name neither world nor rank."""
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        why = f"device {device!r} is not valid: {str(error).splitlines()[0]}"
        raise _invalid(why, "pass 'cpu', 'cuda' or 'cuda:N'") from None


def _require(backend: str, why_not: str | None) -> None:
    if why_not is not None:
        raise BackendUnavailable(what=f"backend {backend!r} cannot be used here", cause=why_not)


def _invalid(what: str, remedy: str) -> InvalidArgument:
    return InvalidArgument(what=what, remedy=remedy)
