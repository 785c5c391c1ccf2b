"""Objects as bytes, and back: only what the receiver allows is ever loaded, in bounded work.

What is allowed without a word cannot be misused: see ``factories``, ``machine`` and ``values``. What the caller allows
by ``allow=`` is called and filled as its class says, with what the peer sent: whom you allow, you trust.
"""

from __future__ import annotations

import enum
import importlib
import io
import pickle
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from multiworld.errors import InvalidArgument, MultiWorldError, ObjectRefused
from multiworld.matching.membership import Membership
from multiworld.serialization.factories import FACTORIES
from multiworld.serialization.machine import Machine
from multiworld.serialization.values import as_data

_BY_NAME: Final = object()  # allowed by its name only: imported when it is first needed
Allowed = Mapping[str, Any]


def dumps(obj: Any, us: Membership, operation: str = "send_object") -> bytes:
    """Pickle ``obj``, tensors and NumPy arrays in it as plain data.

    Raises:
        InvalidArgument: it cannot be pickled, or holds a tensor or an array of a kind that cannot travel.
    """
    out = io.BytesIO()
    where = {"world": us.name, **us.where(operation)}
    try:
        _Pickler(out, protocol=4).dump(obj)
    except MultiWorldError as error:
        raise error.with_context(**where) from None
    except Exception as error:
        raise InvalidArgument(
            what=f"{type(obj).__name__} cannot be sent: {type(error).__name__}: {error}",
            cause="it holds something that pickle cannot take",
            remedy="send plain data or an object of a class in a module; nothing was sent and the world goes on",
        ).with_context(**where) from error
    return out.getvalue()


def allowed(allow: Sequence[Any], us: Membership, operation: str) -> Allowed:
    """Return the items of ``allow=``, classes and functions or their names in full, by full name.

    Raises:
        InvalidArgument: it is no list, or holds something else; known before anything is received.
    """
    if not allow and isinstance(allow, (list, tuple)):
        return {}
    listed = isinstance(allow, Iterable) and not isinstance(allow, (str, type))
    names = dict(map(_named, allow)) if listed else {"": allow}
    if "" in names:
        remedy = "pass a list of classes, functions or 'module.qualname'"
        raise InvalidArgument(us.name, f"allow has {names['']!r}", remedy=remedy, **us.where(operation))
    return names


def _named(item: Any) -> tuple[str, Any]:
    """An item of ``allow`` by its full name; by no name if it has none."""
    if isinstance(item, str):
        return (item, _BY_NAME) if "." in item else ("", item)
    module, name = getattr(item, "__module__", None), getattr(item, "__qualname__", None)
    return (f"{module}.{name}" if isinstance(module, str) and isinstance(name, str) else ""), item


def loads(data: memoryview | bytes, names: Allowed, us: Membership) -> Any:
    """Unpickle ``data``.

    Raises:
        ObjectRefused: it names something that is not allowed, causes too much work, or is no pickle of ours.
    """
    where = {"world": us.name, **us.where()}
    try:
        return Machine(memoryview(data), names, _found).load()
    except ObjectRefused as refused:
        raise refused.with_context(**where) from None
    except Exception as error:
        raise ObjectRefused(what=f"the object cannot be loaded: {type(error).__name__}: {error}").with_context(
            **where
        ) from error


def _found(names: Allowed, module: str, name: str) -> tuple[Any, bool]:
    """Return the meaning of a name in a pickle, and whether it is the caller's own."""
    full = f"{module}.{name}"
    if full in names:
        return (_imported(module, name) if names[full] is _BY_NAME else names[full]), True
    factory = FACTORIES.get(full)
    if factory is None:
        raise ObjectRefused(what=f"the object needs {full}, which is not allowed here")
    return factory, False


def _imported(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


class _Pickler(pickle.Pickler):
    """Tensors and the like go as plain data: no storage classes, nothing to be rebuilt by name."""

    def persistent_id(self, obj: Any) -> Any:
        return as_data(obj)

    def reducer_override(self, obj: Any) -> Any:
        # Python 3.11.0 to 3.11.3 name a member by `getattr`, which must not be allowed; all others by its value.
        own = enum.Enum.__reduce_ex__, enum.Flag.__reduce_ex__
        if isinstance(obj, enum.Enum) and type(obj).__reduce_ex__ in own:
            return type(obj), (obj._value_,)
        return NotImplemented
