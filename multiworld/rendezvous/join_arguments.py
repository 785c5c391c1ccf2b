"""The arguments of ``join``, checked before anything is opened."""

from __future__ import annotations

import importlib
import json
import os
from dataclasses import dataclass
from typing import Any, get_args

import torch
import torch.distributed as dist

from multiworld.config import (
    DEFAULT_MAX_MESSAGE_BYTES,
    Heartbeat,
    NetworkSettings,
    OnCancel,
    WorldConfig,
    is_duration,
    whole_number,
)
from multiworld.errors import BackendUnavailable, InvalidArgument
from multiworld.matching.collective_plan import MAX_MEMBERS

BACKENDS = ("gloo", "nccl", "torch-nccl")
#: limit for a world's name as JSON: the greeting has it in a line of bounded length
MAX_NAME_BYTES = 3000


@dataclass(frozen=True, slots=True)
class Defaults:
    """The defaults of ``join``; fields as in ``WorldConfig``."""

    address: str | None
    op_timeout: float
    heartbeat: Heartbeat
    network: NetworkSettings


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
) -> WorldConfig:
    """All settings of a membership, or a typed error that says which is wrong.

    The arguments are those of ``MultiWorld.join``; None takes the default. ``resize`` is only checked.

    Raises:
        InvalidArgument: name, rank, size or a timeout cannot be right.
        BackendUnavailable: the backend is unknown, or cannot work here.
        BackendFailed: the environment is set otherwise than the backend needs it.
    """
    if not isinstance(name, str) or not name or "\n" in name:
        raise _invalid(name, None, f"{name!r} is not a valid name for a world", "pass a non-empty string in one line")
    if len(json.dumps(name)) > MAX_NAME_BYTES:
        raise _invalid(name[:40], None, f"a name of {len(name)} characters is too long", "pass a shorter one")
    rank = _from_environment(name, "RANK", "rank") if rank is None else rank
    size = _from_environment(name, "WORLD_SIZE", "size") if size is None else size
    members, place_in = whole_number(size), whole_number(rank)
    if members is None or not 1 <= members <= MAX_MEMBERS:
        raise _invalid(name, place_in, f"size {size!r} is not in 1..{MAX_MEMBERS}", "pass the number of members")
    if place_in is None or not 0 <= place_in < members:
        raise _invalid(
            name, None, f"rank {rank!r} is not in 0..{members - 1}", "pass our place among the members, from 0"
        )
    address = defaults.address if address is None else address
    op_timeout = defaults.op_timeout if op_timeout is None else op_timeout
    heartbeat = defaults.heartbeat if heartbeat is None else heartbeat
    if address is not None and (not isinstance(address, str) or not address):
        raise _invalid(name, place_in, f"address is {address!r}, not text", "pass a local address, or None")
    for what, value in (("op_timeout", op_timeout), ("join_timeout", join_timeout)):
        if not is_duration(value):
            raise _invalid(name, rank, f"{what} is {value!r}", "pass seconds above 0; math.inf waits without a limit")
    if not isinstance(heartbeat, Heartbeat):
        raise _invalid(
            name, rank, f"heartbeat is {heartbeat!r}", "pass a Heartbeat(interval, suspect_after, lost_after)"
        )
    _check_choices(name, place_in, resize, on_cancel)
    place = _checked_device(name, place_in, backend, device)
    length = _checked_length(name, place_in, max_message_bytes)
    times: dict[str, Any] = {"op_timeout": op_timeout, "join_timeout": join_timeout, "heartbeat": heartbeat}
    how: dict[str, Any] = {"network": defaults.network, "on_cancel": on_cancel, "max_message_bytes": length}
    return WorldConfig(name, place_in, members, backend=backend, device=place, address=address, **times, **how)


def _check_choices(name: str, rank: int, resize: object, on_cancel: object) -> None:
    if not isinstance(resize, bool):
        raise _invalid(name, rank, f"resize is {resize!r}", "pass True or False")
    if on_cancel not in get_args(OnCancel):
        raise _invalid(name, rank, f"on_cancel is {on_cancel!r}", "pass 'break' or 'finish'")


def _checked_length(name: str, rank: int, length: int) -> int:
    number = whole_number(length)
    if number is None or number < 1:
        raise _invalid(name, rank, f"max_message_bytes is {length!r}", "pass a whole number of bytes above 0")
    return number


def _from_environment(name: str, variable: str, what: str) -> int:
    try:
        return int(os.environ[variable])
    except (KeyError, ValueError):
        missing = f"{what} is not given, and {variable} is not set to a number"
        raise _invalid(name, None, missing, f"pass {what}=, or launch with torchrun") from None


def _checked_device(name: str, rank: int, backend: str, device: torch.device | str | None) -> str:
    if not isinstance(backend, str) or backend not in BACKENDS:
        raise BackendUnavailable(
            name, f"unknown backend {backend!r}", cause=f"known are {', '.join(BACKENDS)}", rank=rank, operation="join"
        )
    if backend == "gloo":
        there = dist.is_available() and hasattr(dist, "ProcessGroupGloo")
        _require(name, rank, "gloo", there, "this torch is built without Gloo")
        place = _device(name, rank, "cpu" if device is None else device)
        if place.type == "meta":
            raise _invalid(name, rank, "device 'meta' has no memory", "pass the device of the tensors")
        if place.type == "cuda":
            _require(
                name, rank, "gloo", torch.cuda.is_available(), f"torch sees no CUDA device, but device={str(place)!r}"
            )
        return str(place)
    choice = importlib.import_module("multiworld.backends.choice")
    why = choice.unavailable(backend)
    _require(name, rank, backend, why is None, why or "")
    place = _cuda_device(name, rank, backend, device)
    choice.settle_environment(backend, name, rank)
    return str(place)


def _cuda_device(name: str, rank: int, backend: str, device: torch.device | str | None) -> torch.device:
    """The device with its index; by default the calling thread's."""
    chosen = torch.device("cuda") if device is None else _device(name, rank, device)
    if chosen.type != "cuda":
        remedy = "pass a CUDA device, or backend='gloo'"
        raise _invalid(name, rank, f"device {chosen} with backend {backend!r}", remedy)
    index, count = torch.cuda.current_device() if chosen.index is None else chosen.index, torch.cuda.device_count()
    if index >= count:
        cause = f"this process has {count}: cuda:0 to cuda:{count - 1}; CUDA_VISIBLE_DEVICES decides which"
        remedy, what = "pass another device=, or make it visible to this process", f"device cuda:{index} is not there"
        raise BackendUnavailable(name, what, cause=cause, remedy=remedy, rank=rank, operation="join")
    return torch.device("cuda", index)


def _device(name: str, rank: int, device: torch.device | str) -> torch.device:
    """Parse ``device``; torch's own error would name neither world nor rank."""
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        why = f"device {device!r} is not valid: {str(error).splitlines()[0]}"
        raise _invalid(name, rank, why, "pass 'cpu', 'cuda' or 'cuda:N'") from None


def _require(name: str, rank: int, backend: str, there: bool, cause: str) -> None:
    if not there:
        raise BackendUnavailable(
            name, f"backend {backend!r} cannot be used here", cause=cause, rank=rank, operation="join"
        )


def _invalid(name: str, rank: int | None, what: str, remedy: str) -> InvalidArgument:
    return InvalidArgument(name, what, remedy=remedy, rank=rank if isinstance(rank, int) else None, operation="join")
