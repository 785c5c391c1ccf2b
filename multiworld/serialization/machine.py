"""Reads a pickle of ``send_object`` with bounded work, and builds only what the receiver allows.

Python's own unpickler hands out classes by name, sets any attribute that a pickle names, and hashes values whose hash
takes forever; all of it holds the GIL. This one knows only the opcodes that ``dumps`` writes (protocol 4). It calls
factories and what the caller allows, and counts its work, see ``Budget``.
"""

from __future__ import annotations

import enum
import struct
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Final, NoReturn

from multiworld.errors import ObjectRefused
from multiworld.serialization.factories import Factory
from multiworld.serialization.values import of_data, payload_bytes

#: work that every object may cause, and more for each byte; a unit is about ten nanoseconds
BASE_WORK: Final = 2_000_000
WORK_PER_BYTE: Final = 8
#: how deep a tuple or frozenset that is hashed may be: the interpreter's own hashing has no bound, and a stack has one
MAX_KEY_DEPTH: Final = 64
#: keys of one hash in one dict or set; each further one is compared with all of them
MAX_COLLISIONS: Final = 64
#: what can be made to collide only by who knows the process's own secret, or hardly
_SAFE_KEYS: Final = frozenset({type(None), bool, float, *((str, bytes) if sys.flags.hash_randomization else ())})
_LEAVES: Final = frozenset({type(None), bool, int, float, str, bytes})
_SMALL: Final = 1 << 60  # whole numbers below it are their own hash


def refuse(what: str) -> NoReturn:
    """Raise ``ObjectRefused`` for an object that does or needs ``what``."""
    raise ObjectRefused(what=what)


class Budget:
    """The work that one object may still cause: counted, and keys weighed before they are hashed.

    A value of a few hundred bytes whose parts are shared can take forever to be hashed or compared. Keys of one hash
    make a dict as slow as a list. Both hold the GIL. The work may not exceed what the message's length warrants.
    """

    def __init__(self, nbytes: int) -> None:
        self._work = BASE_WORK + WORK_PER_BYTE * nbytes
        self._weights: dict[int, tuple[int, int, Any]] = {}  # weight, depth and the value itself, by id
        self._hashes: dict[int, tuple[dict[int, int], Any]] = {}  # of the keys in a dict or set, by its id

    def spend(self, units: int) -> None:
        """Count work, before it is done; raises ``ObjectRefused`` when it is too much."""
        self._work -= units
        if self._work < 0:
            refuse("the object causes far more work than its length warrants")

    def admit(self, key: Any, container: Any) -> None:
        """Make sure that ``key`` can be hashed, and compared with the others in ``container``, in bounded time."""
        kind = type(key)
        if kind in _SAFE_KEYS:
            self._work -= 1 + (len(key) >> 8 if kind is str or kind is bytes else 0)
        elif kind is int and -_SMALL < key < _SMALL:
            self._work -= 1
        else:
            self.spend(4 * self._weight(key, 0)[0])
            self._count_hash(hash(key), container)
        if self._work < 0:
            self.spend(0)

    def _count_hash(self, code: int, container: Any) -> None:
        known = self._hashes.get(id(container))
        if known is None:
            known = self._hashes[id(container)] = {}, container
        count = known[0][code] = known[0].get(code, 0) + 1
        if count > MAX_COLLISIONS:
            refuse("the object holds a dict or set whose keys collide")

    def _weight(self, value: Any, depth: int) -> tuple[int, int]:
        """Return how many values are visited when ``value`` is hashed or compared, and how deep they lie."""
        kind = type(value)
        if kind is tuple and _LEAVES.issuperset(map(type, value)):
            return 1 + len(value) + sum(map(sys.getsizeof, value)) // 256, 1
        if kind is tuple or kind is frozenset:
            return self._weight_of_parts(value, depth)
        if kind in _LEAVES:
            return 1 + sys.getsizeof(value) // 256, 0
        if kind is range or kind is slice:
            return 4 + sum(map(sys.getsizeof, (value.start, value.stop, value.step))) // 64, 1
        return 8, 0

    def _weight_of_parts(self, value: Any, depth: int) -> tuple[int, int]:
        known = self._weights.get(id(value))
        if known is None:
            if depth > MAX_KEY_DEPTH:
                refuse(f"the object holds a key that is nested more than {MAX_KEY_DEPTH} deep")
            weight = below = 1
            for part in value:
                more, deep = self._weight(part, depth + 1)
                self.spend(8)
                weight, below = weight + more, max(below, deep + 1)
                if weight > self._work:
                    refuse("the object holds a key that cannot be hashed in reasonable time")
            known = self._weights[id(value)] = weight, below, value
        if depth + known[1] > MAX_KEY_DEPTH:
            refuse(f"the object holds a key that is nested more than {MAX_KEY_DEPTH} deep")
        return known[0], known[1]


#: no pickle ever changes one of these
_SHARED: Final = (type, enum.Enum, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)

_unpack_int: Final = struct.Struct("<i").unpack_from
_unpack_double: Final = struct.Struct(">d").unpack_from


class Machine:
    """Reads one pickle.

    Args:
        data: the whole pickle.
        names: what the caller allows, by full name.
        find: what a module and a name stand for, and whether it is the caller's own; if not, it is a ``Factory``.
    """

    def __init__(self, data: memoryview, names: Any, find: Callable[[Any, str, str], tuple[Any, bool]]) -> None:
        self._data = data
        self._names, self._find = names, find
        self._at = 0
        self._budget = Budget(len(data))
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: list[Any] = []
        self._loose = 0  # factories handed out and not called yet
        self._callable: dict[int, Any] = {}  # what the caller allows, by id
        self._theirs: dict[int, Any] = {}  # what the caller's own classes made, by id; kept, so that no id comes again

    def load(self) -> Any:
        """The object.

        Raises:
            ObjectRefused: it needs something that is not allowed, more work than its length warrants, or is no pickle.
        """
        data, table = self._data, _TABLE
        try:
            while True:
                step = table[data[self._at]]
                self._at += 1
                if step is None:
                    return self._end()
                step(self)
        except (IndexError, struct.error):
            refuse(f"the object is cut off or scrambled at byte {self._at} of {len(data)}")

    def _end(self) -> Any:
        code = self._data[self._at - 1 : self._at].tobytes()
        if code != b".":
            refuse(f"the object has opcode {code!r}, which send_object does not write")
        if self._loose:
            refuse("the object holds a class itself, which is not allowed here")
        if self._marks or len(self._stack) != 1 or self._at != len(self._data):
            refuse("the object is scrambled: something is left when it ends")
        return self._stack[0]

    # bytes

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise IndexError
        taken = self._data[self._at : end].tobytes()
        self._at = end
        return taken

    def _number(self, count: int) -> int:
        return int.from_bytes(self._take(count), "little")

    def _protocol(self) -> None:
        if self._number(1) > 4 or self._at != 2:
            refuse("the object is a pickle of another protocol")

    # values

    # The frequent ones go the short way.

    def _push_byte(self) -> None:
        self._stack.append(self._data[self._at])
        self._at += 1

    def _push_short(self) -> None:
        at = self._at
        self._stack.append(self._data[at] | self._data[at + 1] << 8)
        self._at = at + 2

    def _push_int(self) -> None:
        self._stack.append(_unpack_int(self._data, self._at)[0])
        self._at += 4

    def _push_float(self) -> None:
        self._stack.append(_unpack_double(self._data, self._at)[0])
        self._at += 8

    def _push_long(self, width: int) -> None:
        self._stack.append(int.from_bytes(self._take(self._number(width)), "little", signed=True))

    def _push_bytes(self, width: int) -> None:
        self._stack.append(self._take(self._number(width)))

    def _push_text(self, width: int) -> None:
        self._stack.append(str(self._take(self._number(width)), "utf-8", "surrogatepass"))

    def _push_short_text(self) -> None:
        begin = self._at + 1
        end = begin + self._data[begin - 1]
        if end > len(self._data):
            raise IndexError
        self._stack.append(str(self._data[begin:end], "utf-8", "surrogatepass"))
        self._at = end

    def _memoize(self) -> None:
        self._memo.append(self._stack[-1])

    def _recall_near(self) -> None:
        self._push_known(self._memo[self._data[self._at]])
        self._at += 1

    def _recall_far(self) -> None:
        self._push_known(self._memo[self._number(4)])

    def _push_known(self, value: Any) -> None:
        if type(value) is Factory:
            self._loose += 1
        self._stack.append(value)

    # the stack

    def _mark(self) -> None:
        self._marks.append(len(self._stack))

    def _pop_mark(self) -> list[Any]:
        begin = self._marks.pop()
        if begin > len(self._stack):
            raise IndexError
        items = self._stack[begin:]
        del self._stack[begin:]
        return items

    def _pop(self) -> Any:
        if self._marks and self._marks[-1] >= len(self._stack):
            raise IndexError
        return self._stack.pop()

    def _drop(self) -> None:
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self._stack.pop()

    def _tuple(self, count: int) -> None:
        if count > len(self._stack) or (self._marks and len(self._stack) - count < self._marks[-1]):
            raise IndexError
        items = tuple(self._stack[-count:])
        del self._stack[-count:]
        self._stack.append(items)

    # containers

    def _list_of(self, target: Any) -> Any:
        if type(target) not in (list, deque) and id(target) not in self._theirs:
            refuse(f"the object appends to a {type(target).__name__}")
        return target

    def _append(self) -> None:
        item = self._pop()
        self._list_of(self._stack[-1]).append(item)

    def _appends(self) -> None:
        items = self._pop_mark()
        target = self._list_of(self._stack[-1])
        if hasattr(target, "extend"):
            target.extend(items)
            return
        for item in items:
            target.append(item)

    def _set_pairs(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) not in (dict, OrderedDict) and id(target) not in self._theirs:
            refuse(f"the object sets items of a {type(target).__name__}")
        if len(items) % 2:
            raise IndexError
        for place in range(0, len(items), 2):
            self._budget.admit(items[place], target)
            target[items[place]] = items[place + 1]

    def _set_item(self) -> None:
        value = self._pop()
        self._set_pairs([self._pop(), value])

    def _add_items(self) -> None:
        items = self._pop_mark()
        target = self._stack[-1]
        if type(target) is not set and id(target) not in self._theirs:
            refuse(f"the object adds to a {type(target).__name__}")
        for item in items:
            self._budget.admit(item, target)
            target.add(item)

    def _frozenset(self) -> None:
        items = self._pop_mark()
        for item in items:
            self._budget.admit(item, items)
        self._stack.append(frozenset(items))

    # what is called

    def _global(self) -> None:
        name, module = self._pop(), self._pop()
        if type(name) is not str or type(module) is not str:
            refuse("the object is scrambled: a name is no text")
        found, theirs = self._find(self._names, module, name)
        if theirs:
            self._callable[id(found)] = found
        else:
            self._loose += 1
        self._stack.append(found)

    def _call(self, function: Any, args: Any, options: Any = None, *, new: bool = False) -> None:
        if type(args) is not tuple or type(options) not in (dict, type(None)):
            refuse("the object is scrambled: arguments are no tuple")
        if type(function) is Factory:
            self._loose -= 1
            self._stack.append(function(args, self._budget.spend))
            return
        if id(function) not in self._callable and id(function) not in self._theirs:
            refuse(f"the object calls a {type(function).__name__}, which is not allowed here")
        self._budget.spend(100 + len(args))
        made = function.__new__(function, *args, **(options or {})) if new else function(*args)
        self._theirs[id(made)] = made
        self._stack.append(made)

    def _reduce(self) -> None:
        args = self._pop()
        self._call(self._pop(), args)

    def _new_object(self) -> None:
        args = self._pop()
        self._call(self._pop(), args, new=True)

    def _new_object_ex(self) -> None:
        options, args = self._pop(), self._pop()
        self._call(self._pop(), args, options, new=True)

    def _persistent(self) -> None:
        pid = self._pop()
        self._budget.spend(50 + payload_bytes(pid) // 4)
        self._stack.append(of_data(pid))

    def _build(self) -> None:
        state = self._pop()
        target = self._stack[-1]
        if type(target) is OrderedDict and type(state) is dict and [*state] == ["_metadata"]:  # a Module's state_dict
            vars(target).update(state)
            return
        if id(target) not in self._theirs or isinstance(target, _SHARED):
            refuse(f"the object sets attributes of a {type(target).__name__}")
        set_state = getattr(target, "__setstate__", None)
        if set_state is not None:
            set_state(state)
            return
        slots = None
        if type(state) is tuple and len(state) == 2:
            state, slots = state
        self._set_attributes(target, state, slots)

    def _set_attributes(self, target: Any, state: Any, slots: Any) -> None:
        if type(state) not in (dict, type(None)) or type(slots) not in (dict, type(None)):
            refuse("the object is scrambled: the state of an object is no dict")
        self._budget.spend(len(state or ()) + len(slots or ()))
        if state:
            target.__dict__.update({sys.intern(k) if type(k) is str else k: v for k, v in state.items()})
        for name, value in (slots or {}).items():
            setattr(target, name, value)


def _with(step: Callable[..., Any], *args: Any) -> Callable[[Machine], None]:
    return lambda machine: step(machine, *args)


def _pushing(value: Any) -> Callable[[Machine], None]:
    return lambda machine: machine._stack.append(value)


def _making(kind: Callable[[], Any]) -> Callable[[Machine], None]:
    return lambda machine: machine._stack.append(kind())


_STEPS: Final[tuple[tuple[bytes, Callable[[Machine], None]], ...]] = (
    *((b"\x80", Machine._protocol), (b"\x95", _with(Machine._take, 8)), (b"\x94", Machine._memoize)),
    *((b"h", Machine._recall_near), (b"j", Machine._recall_far)),
    *((b"N", _pushing(None)), (b"\x88", _pushing(True)), (b"\x89", _pushing(False)), (b")", _pushing(()))),
    *((b"K", Machine._push_byte), (b"M", Machine._push_short), (b"J", Machine._push_int)),
    *((b"\x8a", _with(Machine._push_long, 1)), (b"\x8b", _with(Machine._push_long, 4)), (b"G", Machine._push_float)),
    *((code, _with(Machine._push_bytes, width)) for code, width in ((b"C", 1), (b"B", 4), (b"\x8e", 8))),
    *(
        (b"\x8c", Machine._push_short_text),
        (b"X", _with(Machine._push_text, 4)),
        (b"\x8d", _with(Machine._push_text, 8)),
    ),
    *((b"(", Machine._mark), (b"0", Machine._drop), (b"1", lambda machine: machine._pop_mark().clear())),
    *((code, _with(Machine._tuple, count)) for code, count in ((b"\x85", 1), (b"\x86", 2), (b"\x87", 3))),
    (b"t", lambda machine: machine._stack.append(tuple(machine._pop_mark()))),
    *((b"]", _making(list)), (b"a", Machine._append), (b"e", Machine._appends)),
    *((b"}", _making(dict)), (b"s", Machine._set_item)),
    (b"u", lambda machine: machine._set_pairs(machine._pop_mark())),
    *((b"\x8f", _making(set)), (b"\x90", Machine._add_items), (b"\x91", Machine._frozenset)),
    *((b"\x93", Machine._global), (b"R", Machine._reduce), (b"\x81", Machine._new_object)),
    *((b"\x92", Machine._new_object_ex), (b"b", Machine._build), (b"Q", Machine._persistent)),
)
_TABLE: Final = [dict(_STEPS).get(bytes([code])) for code in range(256)]
