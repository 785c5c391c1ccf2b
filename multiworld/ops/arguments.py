"""Arguments of any kind, and what they are taken for."""

from __future__ import annotations

import operator
from typing import Any


def whole_number(value: Any) -> int | None:
    """``value`` as an int; None if it is no whole number.

    Args:
        value: an int, or what can stand for one, such as NumPy's integers. bool and tensors are refused: ``True`` as a
            rank is a mistake, and a tensor would have to be computed first.
    """
    if type(value) is int:
        return value
    if isinstance(value, bool) or not hasattr(type(value), "__index__") or hasattr(type(value), "__torch_function__"):
        return None
    try:
        return operator.index(value)
    except TypeError:  # such as an array of more than one element
        return None
