"""The harmless classes that every received object may hold, each behind a function that checks what it is given.

A class itself is never handed out: a pickle can set attributes on what it gets hold of, and call it with numbers whose
result fills the memory. A factory has no attributes, and knows its bounds.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from multiworld.errors import ObjectRefused

#: longest whole number in a Fraction, range or slice
MAX_BITS: Final = 16_384
#: longest text of a Decimal or Fraction, and its largest exponent: int() of a longer one takes seconds
MAX_DIGITS: Final = 4_300
MAX_EXPONENT: Final = 10_000
_DECIMAL: Final = re.compile(r"-?(?:(\d+)(?:\.(\d*))?(?:E([+-]?\d{1,9}))?|Infinity|s?NaN\d*)", re.ASCII)
_FRACTION: Final = re.compile(r"-?\d+(?:/\d+)?", re.ASCII)

Spend = Callable[[int], None]


@dataclass(frozen=True, slots=True, repr=False)
class Factory:
    """Builds one harmless type, with the arguments of a pickle. Nothing of it can be changed."""

    _name: str
    _build: Callable[..., Any]

    def __call__(self, args: tuple[Any, ...], spend: Spend) -> Any:
        """The value for ``args``; ``spend`` is told the work in units of about ten nanoseconds.

        Raises:
            ObjectRefused: the arguments are not those of such a value, or out of bounds.
        """
        spend(20)
        for arg in args:
            if type(arg) in (str, bytes, tuple, list):
                spend(len(arg) // 16)
        try:
            return self._build(spend, *args)
        except (TypeError, ValueError, ArithmeticError, RuntimeError) as error:
            raise ObjectRefused(what=f"the object holds a {self._name} that cannot be: {error}") from None

    def __repr__(self) -> str:
        return f"<factory of {self._name}>"


def _whole(value: Any) -> int:
    if type(value) is not int or value.bit_length() > MAX_BITS:
        raise ValueError("a whole number is expected, and no astronomic one")
    return value


def _complex(_: Spend, real: float, imaginary: float) -> complex:
    if type(real) is not float or type(imaginary) is not float:
        raise TypeError("two floats are expected")
    return complex(real, imaginary)


def _bytearray(spend: Spend, data: bytes = b"") -> bytearray:
    if type(data) is not bytes:
        raise TypeError("bytes are expected")
    spend(len(data) // 4)
    return bytearray(data)


def _deque(_: Spend, content: tuple[()] = (), maxlen: int | None = None) -> collections.deque[Any]:
    if content != ():
        raise ValueError("an empty one is expected")
    return collections.deque(maxlen=None if maxlen is None else _whole(maxlen))


def _of_state(kind: Callable[..., Any], length: int) -> Callable[..., Any]:
    """A maker of a class of ``datetime`` from its packed state."""

    def build(_: Spend, state: bytes, zone: datetime.timezone | None = None) -> Any:
        if type(state) is not bytes or len(state) != length or type(zone) not in (datetime.timezone, type(None)):
            raise TypeError("a packed state and a plain time zone are expected")
        return kind(state) if zone is None else kind(state, zone)

    return build


def _timezone(_: Spend, offset: datetime.timedelta, *name: str) -> datetime.timezone:
    if type(offset) is not datetime.timedelta or any(type(one) is not str for one in name):
        raise TypeError("an offset and a name are expected")
    return datetime.timezone(offset, *name)


def _decimal(spend: Spend, text: str) -> decimal.Decimal:
    found = _DECIMAL.fullmatch(text) if type(text) is str and len(text) <= MAX_DIGITS else None
    if found is None or abs(int(found[3] or 0)) > MAX_EXPONENT:
        raise ValueError(f"at most {MAX_DIGITS} digits and an exponent of {MAX_EXPONENT} are expected")
    spend(len(text))
    return decimal.Decimal(text)


def _fraction(spend: Spend, above: int | str, below: int = 1) -> fractions.Fraction:
    if type(above) is str:
        if len(above) > MAX_DIGITS or _FRACTION.fullmatch(above) is None:
            raise ValueError(f"two whole numbers of at most {MAX_DIGITS} digits are expected")
        spend(len(above) ** 2)
        return fractions.Fraction(above)
    above, below = _whole(above), _whole(below)
    spend((above.bit_length() // 32 + 1) * (below.bit_length() // 32 + 1))  # their common divisor
    return fractions.Fraction(above, below)


def _device(_: Spend, name: str, index: int | None = None) -> torch.device:
    if type(name) is not str or len(name) > 64:
        raise TypeError("a name is expected")
    return torch.device(name) if index is None else torch.device(name, _whole(index))


_BUILDS: Final[dict[str, Callable[..., Any]]] = {
    "builtins.complex": _complex,
    "builtins.range": lambda _, start, stop, step: range(_whole(start), _whole(stop), _whole(step)),
    "builtins.slice": lambda _, *parts: slice(*(None if part is None else _whole(part) for part in parts)),
    "builtins.bytearray": _bytearray,
    "collections.OrderedDict": lambda _: collections.OrderedDict(),
    "collections.deque": _deque,
    "datetime.date": _of_state(datetime.date, 4),
    "datetime.datetime": _of_state(datetime.datetime, 10),
    "datetime.time": _of_state(datetime.time, 6),
    "datetime.timedelta": lambda _, days, seconds, us: datetime.timedelta(_whole(days), _whole(seconds), _whole(us)),
    "datetime.timezone": _timezone,
    "decimal.Decimal": _decimal,
    "fractions.Fraction": _fraction,
    "torch.Size": lambda _, sizes: torch.Size([_whole(n) for n in sizes]),
    "torch.device": _device,
}
#: what is always allowed, in addition to what pickle itself knows (numbers, text, bytes, lists, tuples, dicts, sets)
FACTORIES: Final = {name: Factory(name, build) for name, build in _BUILDS.items()}
