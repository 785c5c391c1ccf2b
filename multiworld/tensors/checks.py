"""The checks of arguments: those that make the use of a tensor's memory safe, and those of ranks, lists and devices."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Hashable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn.parameter import is_lazy

from multiworld.config import whole_number
from multiworld.engine.library import know_plain_tensors
from multiworld.errors import InvalidArgument
from multiworld.matching.protocol import CODES
from multiworld.tensors.kinds import LAZY, PLAIN, PLAIN_TYPES, Form, key_set, kind_of

if TYPE_CHECKING:
    from multiworld.matching.membership import GroupMembers

#: whether a storage tells memory of PyTorch's own, which may be resized, from memory of somebody else
_tells_owner = hasattr(torch.UntypedStorage, "resizable")
#: sets of dispatch keys of plain tensors, as they come by; True if on the CPU, where the memory is looked at, too
_plain: dict[Hashable, bool] = {}
know_plain_tensors(PLAIN_TYPES, key_set, _plain)


def check_tensor(group: GroupMembers, operation: str, tensor: torch.Tensor) -> int:
    """Check that ``tensor`` can be received into, as it lies; its dtype's code on the wire.

    Raises:
        InvalidArgument: not a tensor, or one whose memory is not simply its values, see ``tensors.kinds``; not
            contiguous, not on the world's device, of an unknown dtype, or in memory that cannot be written to.
    """
    code = _known(group, tensor, written=True)
    if code is None:
        code = _checked(group, operation, tensor, Form.PLAIN)
        _check_writable(group, operation, tensor)
    return code


def check_source(group: GroupMembers, operation: str, tensor: torch.Tensor) -> int:
    """Check that ``tensor`` can be sent, as ``staging.readable`` makes it; its dtype's code on the wire.

    Raises:
        InvalidArgument: as ``check_tensor``; but read-only memory and what is lazily conjugated or negated may be sent.
    """
    code = _known(group, tensor, written=False)
    return _checked(group, operation, tensor, Form.LAZY) if code is None else code


def _known(group: GroupMembers, tensor: torch.Tensor, *, written: bool) -> int | None:
    """The dtype's code of a tensor of a kind that was seen to be plain; None if each step has to be checked."""
    if type(tensor) not in PLAIN_TYPES or (keys := key_set(tensor)) not in _plain or not tensor.is_contiguous():
        return None
    if _plain[keys]:
        storage = tensor.untyped_storage()
        needed = tensor.nbytes + tensor.storage_offset() * tensor.element_size()
        known = storage.nbytes() >= needed and (not written or not _tells_owner or storage.resizable())
    else:
        known = group.member.on_device and tensor.device == group.device
    return CODES.get(tensor.dtype) if known else None


def _checked(group: GroupMembers, operation: str, tensor: torch.Tensor, most: Form) -> int:
    """Check step by step, to name what is wrong. ``most`` is how far from plain it may be."""
    if not isinstance(tensor, torch.Tensor):
        raise invalid(
            group, operation, f"{type(tensor).__name__} given where a tensor is expected", "pass a torch.Tensor"
        )
    if is_lazy(tensor):
        raise invalid(group, operation, "the parameter is not initialized yet", "materialize it first")
    keys, kind = key_set(tensor), kind_of(tensor)
    if kind is not PLAIN and not (kind is LAZY and most is Form.LAZY):
        raise invalid(group, operation, f"{operation} cannot take {kind.name}", kind.remedy)
    bare = as_plain(tensor)
    code = _check_dense(group, operation, bare)
    if bare.device.type == "cpu":
        _check_extent(group, operation, bare)
    if kind is PLAIN:
        _plain[keys] = bare.is_cpu
    return code


def as_plain(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` without its class: what a subclass overrides is not called for what only moves bytes."""
    if type(tensor) in PLAIN_TYPES:
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor)


def _check_dense(group: GroupMembers, operation: str, tensor: torch.Tensor) -> int:
    if not tensor.is_contiguous():
        raise invalid(
            group, operation, "the tensor is not contiguous", "pass tensor.contiguous(), and copy back what is received"
        )
    elsewhere = f"the tensor is on {tensor.device}, the world on {group.device}"
    if tensor.device.type not in (group.device.type, "cpu"):
        raise invalid(group, operation, elsewhere, "move the tensor, or join with device= of the tensors")
    if tensor.device.type == "cuda" and group.member.on_device and tensor.device != group.device:
        raise invalid(group, operation, elsewhere, "move the tensor, or join another world with device= of the tensor")
    code = CODES.get(tensor.dtype)
    if code is None:
        raise invalid(
            group, operation, f"tensors of {tensor.dtype} cannot be sent", "convert the tensor, or send it as an object"
        )
    return code


def _check_extent(group: GroupMembers, operation: str, tensor: torch.Tensor) -> None:
    """A storage that was resized is no longer what the tensor says, and reading it would end the process."""
    needed = tensor.nbytes + tensor.storage_offset() * tensor.element_size() if tensor.numel() else 0
    there = tensor.untyped_storage().nbytes()
    if there < needed:
        what = f"the tensor's storage has {there} bytes, the tensor needs {needed}"
        raise invalid(group, operation, what, "resize the storage back; FSDP, for one, resizes it to 0 between uses")


def _check_writable(group: GroupMembers, operation: str, tensor: torch.Tensor) -> None:
    tensor = as_plain(tensor)
    if tensor.device.type != "cpu":
        return
    storage = tensor.untyped_storage()
    why = (
        None
        if not _tells_owner or storage.resizable()
        else why_read_only(storage.data_ptr(), tensor.data_ptr(), tensor.nbytes)
    )
    if why is not None:
        raise invalid(group, operation, f"the tensor cannot be written to: {why}", "pass tensor.clone()")


def check_list(group: GroupMembers, operation: str, what: str, given: Any, length: int | None = None) -> None:
    """Check that ``given`` is a list or a tuple, of ``length`` entries if that is given.

    Raises:
        InvalidArgument: it is something else, such as a single tensor, or of another length.
    """
    if not isinstance(given, (list, tuple)) and (isinstance(given, (str, bytes)) or not isinstance(given, Sequence)):
        is_what = "missing" if given is None else f"{type(given).__name__}, not a list"
        raise invalid(group, operation, f"{what} is {is_what}", f"pass {what} as a list")
    if length is not None and len(given) != length:
        raise invalid(
            group, operation, f"{what} has {len(given)} entries, the group {length} members", "pass one per rank"
        )


def invalid(group: GroupMembers, operation: str, what: str, remedy: str) -> InvalidArgument:
    """An ``InvalidArgument`` for a call on ``group``."""
    member = group.member
    return InvalidArgument(
        member.name, what, remedy=remedy, generation=member.generation, rank=member.world_rank, operation=operation
    )


def check_number(group: GroupMembers, operation: str, what: str, value: Any) -> int:
    """Check that ``value`` is a whole number; NumPy's are welcome, bool is none.

    Raises:
        InvalidArgument: it is something else.
    """
    number = whole_number(value)
    if number is None:
        raise invalid(group, operation, f"{what} is {value!r}, not a whole number", f"pass {what} as an int")
    return number


def check_rank(group: GroupMembers, operation: str, what: str, rank: int) -> int:
    """Check that ``rank`` is one of the group; the rank as an int.

    Raises:
        InvalidArgument: it is no whole number, or out of range.
    """
    number = rank if type(rank) is int else check_number(group, operation, what, rank)
    if not 0 <= number < len(group.ranks):
        raise invalid(
            group, operation, f"{what} is {number}, not a rank of 0 to {len(group.ranks) - 1}", f"correct {what}"
        )
    return number


def check_device(group: GroupMembers, operation: str, device: torch.device | str | int | None) -> torch.device:
    """The device that is meant; None is the world's. Known before anything is received, so that nothing is lost.

    Raises:
        InvalidArgument: torch knows no such device, or nothing can lie there.
    """
    if device is None:
        return group.device
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, TypeError, AssertionError, ValueError) as error:
        first = str(error).partition("\n")[0]
        raise invalid(
            group, operation, f"device {device!r} cannot be used: {first}", "pass 'cpu', 'cuda' or 'cuda:N'"
        ) from None
    if place.type == "meta":
        raise invalid(group, operation, "device 'meta' has no memory to receive into", "receive on the CPU")
    return place


_POPULATE_WRITE: Final = 23  # MADV_POPULATE_WRITE of Linux 5.14: fails where a write would, and changes nothing
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_WORD: Final = ctypes.sizeof(ctypes.c_void_p)
_BYTES_HEADER: Final = bytes.__basicsize__ - 1  # reference count, type, length, hash; then the bytes themselves


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    vector = ctypes.c_void_p, ctypes.c_ulong
    libc.process_vm_readv.argtypes = (ctypes.c_int, *vector, *vector, ctypes.c_ulong)
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    return libc


def why_read_only(begin: int, address: int, nbytes: int) -> str | None:
    """Say why memory that PyTorch did not allocate must not be written to; None if nothing speaks against it.

    A tensor over a file that is mapped read-only, or over a ``bytes`` object, looks like any other. Writing through it
    ends the process or changes a constant of the program. What stays unknown is a read-only view of memory that itself
    may be written, such as a NumPy array with its flag off.

    Args:
        begin: address of the storage.
        address: address of what would be written, in the storage.
        nbytes: how much would be written.
    """
    if nbytes == 0:
        return None
    if _is_bytes(begin, address + nbytes - begin):
        return "it lies in a bytes object, which never changes"
    first = address - address % _PAGE
    if _libc().madvise(first, address + nbytes - first, _POPULATE_WRITE) == 0:
        return None
    number = ctypes.get_errno()
    if number == errno.EFAULT:
        return "it lies in a file that has become shorter"
    if number == errno.EINVAL and _mapped_read_only(
        address, nbytes
    ):  # also the answer of kernels that know no such call
        return "it lies in memory that is mapped read-only"
    return None


def _is_bytes(begin: int, nbytes: int) -> bool:
    """Return whether a ``bytes`` object's content begins there: its header before it tells, read without a risk to
    fault."""
    header = (ctypes.c_ssize_t * (_BYTES_HEADER // _WORD))()
    here = _Vector(ctypes.addressof(header), _BYTES_HEADER)
    there = _Vector(begin - _BYTES_HEADER, _BYTES_HEADER)
    got = _libc().process_vm_readv(os.getpid(), ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    return bool(got == _BYTES_HEADER and header[1] == id(bytes) and header[2] >= nbytes)


def _mapped_read_only(address: int, nbytes: int) -> bool:
    with Path("/proc/self/maps").open() as maps:
        for line in maps:
            area, rights, *_ = line.split(maxsplit=2)
            begin, _, end = area.partition("-")
            if int(begin, 16) < address + nbytes and address < int(end, 16) and "w" not in rights:
                return True
    return False
