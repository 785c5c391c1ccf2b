"""Objects as bytes, and back: only what the receiver allows is ever loaded."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from multiworld.errors import InvalidArgument, ObjectRefused
from multiworld.ops.memory import bytes_of

if TYPE_CHECKING:
    from multiworld.session import Session

#: What is always allowed besides the types that pickle itself knows (numbers, text, bytes, lists, tuples, dicts, sets).
#: None of these can run code of the sender's choice.
_ALWAYS: Final = frozenset(
    {
        "builtins.complex",
        "builtins.frozenset",
        "builtins.set",
        "builtins.range",
        "builtins.slice",
        "builtins.bytearray",
        "collections.OrderedDict",
        "collections.deque",
        "datetime.date",
        "datetime.datetime",
        "datetime.time",
        "datetime.timedelta",
        "decimal.Decimal",
        "fractions.Fraction",
        "uuid.UUID",
        "torch.Size",
        "torch.device",
    }
)


def dumps(obj: Any, session: Session) -> bytes:
    """Pickle ``obj``, tensors in it through their storages' bytes.

    Args:
        obj: what is to be sent.
        session: whose world and rank the error names.

    Raises:
        InvalidArgument: it cannot be pickled.
    """
    out = io.BytesIO()
    try:
        _Pickler(out, protocol=4).dump(obj)
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
        raise InvalidArgument(
            session.name, f"{type(obj).__name__} cannot be sent: {error}",
            cause="it holds something that pickle cannot take",
            remedy="send plain data or an object of a class in a module; nothing was sent and the world goes on",
            generation=session.generation, rank=session.rank,
        ) from None  # fmt: skip
    return out.getvalue()


def loads(data: memoryview | bytes, allow: Sequence[type | str], session: Session) -> Any:
    """Unpickle ``data``.

    Args:
        data: what ``dumps`` made.
        allow: classes and functions that may be loaded beside the harmless ones.
        session: whose world and rank the error names.

    Raises:
        ObjectRefused: it names something that is not allowed, or is no pickle.
    """
    names = {item if isinstance(item, str) else f"{item.__module__}.{item.__qualname__}" for item in allow}
    try:
        return _Unpickler(io.BytesIO(bytes(data)), _ALWAYS | names).load()
    except ObjectRefused as refused:
        raise refused.with_context(world=session.name, generation=session.generation, rank=session.rank) from None
    except Exception as error:
        raise ObjectRefused(
            session.name,
            f"the object cannot be loaded: {type(error).__name__}: {error}",
            generation=session.generation,
            rank=session.rank,
        ) from error


class _Pickler(pickle.Pickler):
    """Tensors go as dtype, shape and bytes: no storage classes, nothing to be rebuilt by name."""

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) is torch.Tensor or type(obj) is torch.nn.Parameter:
            flat = obj.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            return "tensor", str(obj.dtype), tuple(obj.shape), bytes(bytes_of(flat))
        if isinstance(obj, torch.dtype):
            return "dtype", str(obj)
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, allowed: frozenset[str]) -> None:
        super().__init__(file)
        self._allowed = allowed

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full not in self._allowed:
            raise ObjectRefused(what=f"the object needs {full}, which is not allowed here")
        return super().find_class(module, name)

    def persistent_load(self, pid: Any) -> Any:
        if pid[0] == "dtype":
            return _dtype(pid[1])
        _, dtype, shape, data = pid
        flat = torch.empty(len(data), dtype=torch.uint8)
        bytes_of(flat)[:] = data
        return flat.view(_dtype(dtype)).reshape(shape)


def _dtype(name: str) -> Any:
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise ObjectRefused(what=f"unknown dtype {name!r}")
    return found
