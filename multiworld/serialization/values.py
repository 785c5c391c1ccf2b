"""Values that travel in a pickle as plain data: tensors, NumPy arrays and scalars, dtypes, UUIDs.

Each goes as a tuple of a name and numbers, text and bytes. No class of the peer's choice and no storage is rebuilt by
name. All that the peer wrote is checked before anything is made of it. NumPy is loaded only where one of its values
comes.
"""

from __future__ import annotations

import importlib
import math
import re
import sys
import uuid
from collections.abc import Callable
from typing import Any, Final

import torch

from multiworld.errors import InvalidArgument, ObjectRefused
from multiworld.matching.memory import bytes_of
from multiworld.tensors.kinds import PLAIN_TYPES, Form, kind_of
from multiworld.tensors.staging import copied, on_cpu

#: NumPy's dtypes whose bytes are their values: bool, numbers, text, times; no objects, no records
_PLAIN_DTYPE: Final = re.compile(r"[<>|=][biufcSUmM]\d{1,9}(\[\d{0,9}[A-Za-z]{1,2}\])?")
_MAX_DIMS: Final = 64
_BASE: Final = {"torch.quint8": torch.uint8, "torch.qint8": torch.int8, "torch.qint32": torch.int32}

_QUANTIZED: Final = frozenset({"quint8", "qint8", "qint32", "quint4x2", "quint2x4"})
_PICKLE_KNOWS: Final = frozenset(
    {type(None), bool, int, float, str, bytes, list, tuple, dict, set, frozenset, bytearray, type}
)

Pid = tuple[Any, ...]


def as_data(obj: Any) -> Pid | None:
    """``obj`` as plain data; None for what pickle is to take.

    Raises:
        InvalidArgument: a tensor or array that cannot travel, named by its kind.
    """
    if type(obj) in _PICKLE_KNOWS:
        return None
    if isinstance(obj, torch.Tensor):
        return _tensor(obj)
    if isinstance(obj, torch.dtype):
        return "dtype", str(obj)
    if type(obj) is uuid.UUID:
        return "uuid", obj.bytes
    numpy = sys.modules.get("numpy")
    return None if numpy is None else _numpy(numpy, obj)


def _tensor(tensor: torch.Tensor) -> Pid | None:
    kind = type(tensor)
    if kind.__reduce_ex__ is not torch.Tensor.__reduce_ex__ and kind not in PLAIN_TYPES:
        return None  # a class that says itself how it is pickled; the receiver has to allow it
    found = kind_of(tensor)
    if found.form is Form.OTHER and tensor.is_quantized and kind in PLAIN_TYPES:
        return _quantized(tensor)
    if found.form is Form.OTHER:
        raise InvalidArgument(what=f"{found.name} cannot be sent as an object", remedy=found.remedy)
    if kind not in PLAIN_TYPES:
        return None
    if tensor.layout is not torch.strided or not _in_storage(tensor):
        raise InvalidArgument(what="the tensor's storage is smaller than the tensor", remedy="resize the storage back")
    return "tensor", str(tensor.dtype), tuple(tensor.shape), _bytes(tensor)


def _in_storage(tensor: torch.Tensor) -> bool:
    if tensor.numel() == 0:
        return True
    last = tensor.storage_offset() + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    there: int = tensor.untyped_storage().nbytes()
    return bool((last + 1) * tensor.element_size() <= there)


def _bytes(tensor: torch.Tensor) -> bytes:
    host = on_cpu(tensor)
    flat = host if host.is_contiguous() else copied(host)  # a name, since what `bytes_of` returns keeps no tensor alive
    return bytes(bytes_of(flat))


def _quantized(tensor: torch.Tensor) -> Pid:
    dtype, scheme = str(tensor.dtype), tensor.qscheme()
    if dtype not in _BASE or scheme not in (torch.per_tensor_affine, torch.per_channel_affine):
        what = f"a quantized tensor of {dtype} and {scheme} cannot be sent as an object"
        raise InvalidArgument(what=what, remedy="send tensor.dequantize()")
    values = "quantized", dtype, tuple(tensor.shape), _bytes(tensor.int_repr())
    if scheme is torch.per_tensor_affine:
        return *values, tensor.q_scale(), tensor.q_zero_point()
    scales, zeros = tensor.q_per_channel_scales().double(), tensor.q_per_channel_zero_points().long()
    return *values, _bytes(scales), _bytes(zeros), tensor.q_per_channel_axis()


def _numpy(numpy: Any, obj: Any) -> Pid | None:
    kind = type(obj)
    if kind is numpy.ndarray or kind is numpy.memmap:
        return "array", _dtype_text(obj.dtype), obj.shape, obj.tobytes()
    if isinstance(obj, numpy.generic):
        return "scalar", _dtype_text(obj.dtype), obj.tobytes()
    if isinstance(obj, numpy.dtype):
        return "numpy.dtype", _dtype_text(obj)
    return None


def _dtype_text(dtype: Any) -> str:
    text: str = dtype.str
    if dtype.hasobject or _PLAIN_DTYPE.fullmatch(text) is None:
        raise InvalidArgument(
            what=f"NumPy data of dtype {dtype} cannot be sent as an object",
            remedy="send arrays of numbers, bool, text or times; a list for objects, a dict of arrays for records",
        )
    return text


def of_data(pid: Any) -> Any:
    """Return the value that ``as_data`` was given; ``pid`` came from the peer, and nothing of it is trusted.

    Raises:
        ObjectRefused: its parts do not fit together, or NumPy is needed and not installed.
    """
    if type(pid) is not tuple or not pid or type(pid[0]) is not str or pid[0] not in _MAKERS:
        raise ObjectRefused(what="the object holds data of a kind that is not known here")
    kinds, make = _MAKERS[pid[0]]
    parts = pid[1:]
    if not any(tuple(map(type, parts)) == wanted for wanted in kinds):
        raise ObjectRefused(what=f"the object holds a {pid[0]} whose parts are of wrong types")
    return make(*parts)


def payload_bytes(pid: Any) -> int:
    """Return how many bytes of memory ``of_data`` takes, about."""
    return sum(len(part) for part in pid if type(part) is bytes) if type(pid) is tuple else 0


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise ObjectRefused(what=f"unknown dtype {name!r}")
    return found


def _filled(dtype: torch.dtype, shape: tuple[Any, ...], data: bytes) -> torch.Tensor:
    _check_shape("tensor", shape, dtype.itemsize, data)
    flat = torch.empty(len(data), dtype=torch.uint8, device="cpu")
    bytes_of(flat)[:] = data
    return flat.view(dtype).reshape(shape)


def _check_shape(what: str, shape: tuple[Any, ...], itemsize: int, data: bytes) -> None:
    whole = len(shape) <= _MAX_DIMS and all(type(n) is int and 0 <= n < 2**63 for n in shape)
    if not whole or math.prod(shape) * itemsize != len(data):
        raise ObjectRefused(what=f"the object holds a {what} of the shape {_text(shape)} in {len(data)} bytes")


def _text(shape: tuple[Any, ...]) -> str:
    return repr([n if type(n) is int and abs(n) < 2**63 else "?" for n in shape[:8]])


def _make_tensor(dtype: str, shape: tuple[Any, ...], data: bytes) -> torch.Tensor:
    found = _dtype(dtype)
    if dtype.removeprefix("torch.") in _QUANTIZED:
        raise ObjectRefused(what=f"the object holds a tensor of {dtype} without its quantizer")
    return _filled(found, shape, data)


def _make_quantized(dtype: str, shape: tuple[Any, ...], data: bytes, *how: Any) -> torch.Tensor:
    base = _BASE.get(dtype)
    if base is None:
        raise ObjectRefused(what=f"unknown dtype {dtype!r} of a quantized tensor")
    values = _filled(base, shape, data)
    if len(how) == 2:
        return torch._make_per_tensor_quantized_tensor(values, *how)
    scales, zeros, axis = how
    if not 0 <= axis < len(shape):
        raise ObjectRefused(what=f"the object holds a tensor that is quantized along dimension {axis} of {len(shape)}")
    size = (shape[axis],)
    return torch._make_per_channel_quantized_tensor(
        values, _filled(torch.float64, size, scales), _filled(torch.int64, size, zeros), axis
    )


def _make_numpy_dtype(text: str) -> Any:
    if _PLAIN_DTYPE.fullmatch(text) is None:
        raise ObjectRefused(what=f"the object holds NumPy data of dtype {text!r:.40}")
    try:
        numpy = importlib.import_module("numpy")
    except ImportError:
        raise ObjectRefused(
            what="the object holds a NumPy value, and NumPy is not installed here",
            cause="the peer has NumPy, this process has not",
            remedy="install numpy here, or send a tensor or a list",
        ) from None
    return numpy.dtype(text)


def _make_array(text: str, shape: tuple[Any, ...], data: bytes) -> Any:
    dtype = _make_numpy_dtype(text)
    _check_shape("NumPy array", shape, dtype.itemsize, data)
    numpy = sys.modules["numpy"]
    if not data:
        return numpy.empty(shape, dtype)
    return numpy.frombuffer(bytearray(data), dtype).reshape(shape)


# By name: the types that the parts may have, and what makes the value of them.
_MAKERS: Final[dict[str, tuple[tuple[tuple[type, ...], ...], Callable[..., Any]]]] = {
    "tensor": (((str, tuple, bytes),), _make_tensor),
    "quantized": (((str, tuple, bytes, float, int), (str, tuple, bytes, bytes, bytes, int)), _make_quantized),
    "dtype": (((str,),), _dtype),
    "uuid": (((bytes,),), lambda data: uuid.UUID(bytes=data)),
    "array": (((str, tuple, bytes),), _make_array),
    "scalar": (((str, bytes),), lambda text, data: _make_array(text, (1,), data)[0]),
    "numpy.dtype": (((str,),), _make_numpy_dtype),
}
