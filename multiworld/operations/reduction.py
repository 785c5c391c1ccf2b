"""Reductions that are done here, on the CPU: in rank order, so that all members get the same bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from functools import reduce as fold
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.distributed import ReduceOp

from multiworld.engine import library
from multiworld.matching.collective_plan import REDUCTIONS
from multiworld.matching.protocol import CODES
from multiworld.tensors.checks import invalid

if TYPE_CHECKING:
    from multiworld.matching.membership import GroupMembers

#: below ATen's grain size (32,768), so that it works in this thread: waking its pool costs more than it gains here, and
#: on a busy machine a hundred times more
CHUNK: Final = 32_000

_Combine = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_COMBINE: Final[dict[str, _Combine]] = {
    "SUM": torch.Tensor.add_,
    "AVG": torch.Tensor.add_,
    "PRODUCT": torch.Tensor.mul_,
    "MIN": lambda a, b: torch.minimum(a, b, out=a),
    "MAX": lambda a, b: torch.maximum(a, b, out=a),
    "BAND": torch.Tensor.bitwise_and_,
    "BOR": torch.Tensor.bitwise_or_,
    "BXOR": torch.Tensor.bitwise_xor_,
}
_OPS: Final = (ReduceOp, type(ReduceOp.SUM))  # an object of the one on some releases, of the other on others
_KNOWN: Final = {name: getattr(ReduceOp, name) for name in _COMBINE if hasattr(ReduceOp, name)}
_BY_ID: Final = {id(one): name for name, one in _KNOWN.items()}  # they live as long as we do
_BITWISE: Final = frozenset({"BAND", "BOR", "BXOR"})


class Reduction:
    """A checked reduction.

    Args:
        op: a ``torch.distributed.ReduceOp``.
        dtype: of the tensors.
        on_device: whether the backend does it on the device; else it is done here.

    Raises:
        InvalidArgument: the reduction is unknown, or not one for this dtype or on the device.
    """

    def __init__(
        self, group: GroupMembers, operation: str, op: Any, dtype: torch.dtype, *, on_device: bool = False
    ) -> None:
        name = _name(op)
        if name is None:
            raise invalid(group, operation, f"reduction {op!r} is not known here", f"use one of {', '.join(_COMBINE)}")
        exact = not (dtype.is_floating_point or dtype.is_complex)
        if (name in _BITWISE and not exact) or (name == "AVG" and exact):
            raise invalid(
                group, operation, f"{name} of {dtype} is not defined", "convert the tensor, or use another reduction"
            )
        if on_device and name in _BITWISE:
            raise invalid(
                group, operation, f"NCCL has no {name}", "use another reduction, or reduce tensors on the CPU"
            )
        refusal = None if on_device else _refusal(name, dtype)
        if refusal is not None:  # found out before anything is sent, so that every member hears it from its own call
            what = f"torch has no {name} of {dtype}: {refusal}"
            raise invalid(group, operation, what, "convert the tensor, or use another reduction")
        self.name = name
        self.code = REDUCTIONS.index(name)
        #: what the backend is asked for
        self.backend_op = getattr(ReduceOp, name)

    def apply(self, target: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
        """Reduce flat ``tensors`` in order, into ``target``, which may be one of them."""
        memory = target.data_ptr(), [one.data_ptr() for one in tensors]
        if library.module().reduce(self.code, CODES[target.dtype], *memory, target.numel()):
            return
        for begin in range(0, target.numel(), CHUNK):
            end = begin + CHUNK
            target[begin:end].copy_(_combined(self.name, [tensor[begin:end] for tensor in tensors]))


def _combined(name: str, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    result = fold(_COMBINE[name], [parts[0].clone(), *parts[1:]])
    return result.div_(len(parts)) if name == "AVG" else result


@cache
def _refusal(name: str, dtype: torch.dtype) -> str | None:
    """Why this torch cannot do that on the CPU; None if it can. Releases differ, so it is tried, on one element."""
    try:
        one = torch.zeros(1, dtype=dtype, device="cpu")
        one.copy_(_combined(name, [one, one]))
    except (RuntimeError, TypeError) as error:
        return str(error).partition("\n")[0]
    return None


def _name(op: Any) -> str | None:
    known = _BY_ID.get(id(op))
    if known is not None:
        return known
    if not isinstance(op, _OPS):  # first: what else is compared may be compared element by element
        return None
    return next((name for name, one in _KNOWN.items() if op == one), None)
