"""The kinds of tensors: those whose memory holds their numbers, lazy views of such memory, and all others.

PyTorch's dispatch keys say it, in one call: each kind of tensor that means something else than its memory has a key of
its own. A key that is not known here is refused, so that a kind of tomorrow is an error and no wrong number.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final

import torch

#: types of tensors that are what their memory says, unless a key says otherwise
PLAIN_TYPES: Final = frozenset({torch.Tensor, torch.nn.Parameter})

_keys: Final[Callable[[torch.Tensor], Any]] = torch._C._dispatch_keys
_AUTO: Final = ("Autograd", "Autocast")
_PRIVATE: Final = ("PrivateUse1", "PrivateUse2", "PrivateUse3", "ADInplaceOrView")
_DENSE: Final = frozenset(("CPU", "CUDA", "XPU", "HPU", "MPS", "IPU", "VE", "MTIA", "MAIA", *_PRIVATE))
_LAZY: Final = frozenset({"Conjugate", "Negative"})


class Form(enum.Enum):
    """The place of a tensor's numbers."""

    PLAIN = "in its memory"
    LAZY = "in memory that is still to be conjugated or negated"
    OTHER = "somewhere else, or nowhere"


@dataclass(frozen=True)
class Kind:
    """The meaning of a set of dispatch keys.

    Attributes:
        form: how the numbers lie.
        name: the kind in words, with its article; of a plain one, empty.
        remedy: what the caller can do instead.
    """

    form: Form
    name: str = ""
    remedy: str = ""


# The first that is among a tensor's keys, or begins one, names the kind.
_NAMES: Final = (
    ("FuncTorch", "a tensor inside a transform of torch.func (vmap, grad, jvp)", "call it outside of the transform"),
    ("Functionalize", "a functional tensor", "call it outside of functionalization"),
    ("NestedTensor", "a nested tensor", "pass its values() and offsets()"),
    ("Sparse", "a sparse tensor", "pass its indices and values, or tensor.to_dense()"),
    ("Quantized", "a quantized tensor", "pass tensor.int_repr() or tensor.dequantize(), or send it as an object"),
    ("Mkldnn", "an mkldnn tensor", "pass tensor.to_dense()"),
    ("ZeroTensor", "a zero-tensor, which has no memory", "pass torch.zeros() of its shape"),
    ("Meta", "a meta tensor, which has no memory", "pass a tensor with values"),
    ("XLA", "a tensor of a lazy device", "pass tensor.cpu()"),
    ("Lazy", "a tensor of a lazy device", "pass tensor.cpu()"),
    ("Python", "a tensor subclass with __torch_dispatch__", "pass the plain tensors that it is made of"),
)
_CLASSES: Final = {
    "FakeTensor": ("a fake tensor, which has no memory", "pass a tensor with values"),
    "FunctionalTensor": ("a functional tensor", "call it outside of functionalization"),
    "DTensor": ("a DTensor", "pass tensor.to_local()"),
    "MaskedTensor": ("a masked tensor", "pass its get_data() and get_mask()"),
}
PLAIN: Final = Kind(Form.PLAIN)
LAZY: Final = Kind(
    Form.LAZY, "a lazily conjugated or negated tensor", "pass tensor.resolve_conj().resolve_neg(), and copy it back"
)
_known: Final[dict[Hashable, Kind]] = {}


#: a number that tells one set of keys from another; releases without ``raw_repr`` have the text only
_told_apart: Final[Callable[[Any], Hashable]] = getattr(torch._C.DispatchKeySet, "raw_repr", str)


def key_set(tensor: torch.Tensor) -> Hashable:
    """Return a value that tells the keys of ``tensor`` from others."""
    return _told_apart(_keys(tensor))


def kind_of(tensor: torch.Tensor) -> Kind:
    """The kind of ``tensor``; a subclass that is refused is named after its class.

    Args:
        tensor: any tensor, of any class; nothing of it is called.
    """
    keys = key_set(tensor)
    found = _known.get(keys)
    if found is None:
        found = _known[keys] = _kind(str(_keys(tensor)))
    if found.form is Form.OTHER and type(tensor) not in PLAIN_TYPES:
        for base in type(tensor).__mro__:
            if base.__name__ in _CLASSES and base.__module__.startswith("torch."):
                return Kind(Form.OTHER, *_CLASSES[base.__name__])
        return Kind(Form.OTHER, f"{found.name} ({type(tensor).__qualname__})", found.remedy)
    return found


def _kind(keys: str) -> Kind:
    """The kind of the keys in ``DispatchKeySet(CPU, ...)``."""
    names = {name.strip() for name in keys.partition("(")[2].rstrip(")").split(",")}
    rest = {name for name in names if name not in _DENSE and not name.startswith(_AUTO)}
    for prefix, name, remedy in _NAMES:
        if any(key.startswith(prefix) for key in rest):
            return Kind(Form.OTHER, name, remedy)
    if rest - _LAZY:
        return Kind(Form.OTHER, f"a tensor of the kind {', '.join(sorted(rest))}", "pass a plain tensor")
    return LAZY if rest else PLAIN
