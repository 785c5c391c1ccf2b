"""NumPy's arrays and scalars as objects: they arrive, or are refused by name."""

from __future__ import annotations

import sys
import uuid

import pytest
import torch
from procs import cluster

from multiworld import InvalidArgument, ObjectRefused
from multiworld.lab.context import Context
from multiworld.serialization.pickling import dumps
from tests.multiworld.core.objects import US, load, round_trip


def test_numpy_arrays_and_scalars_arrive_without_a_word() -> None:
    np = pytest.importorskip("numpy")
    for array in (
        np.arange(6).reshape(2, 3),
        np.arange(6).reshape(2, 3).T,
        np.array(["a", "bcd"]),
        np.zeros((0, 3), "f4"),
        np.array(3.0),
        np.array(["2020-01-01"], dtype="M8[D]"),
        np.ones(3, ">i4"),
        np.array([True]),
        np.array([b"x"]),
        np.array([1 + 2j], "c8"),
        np.float16([1, 2]),
    ):
        got = round_trip({"a": array})["a"]
        assert (type(got), got.dtype, got.shape) == (type(array), array.dtype, array.shape)
        assert (got == array).all()
        assert got.flags.writeable
    for scalar in (
        np.float32(2),
        np.int64(3),
        np.bool_(True),
        np.str_("abc"),
        np.datetime64("2020-01-01"),
        np.bytes_(b"x"),
    ):
        got = round_trip(scalar)
        assert type(got) is type(scalar)
        assert got == scalar
    assert round_trip(np.dtype("<f4")) == np.dtype("<f4")


def test_numpy_data_of_objects_and_records_is_refused_by_name() -> None:
    np = pytest.importorskip("numpy")
    for array in (np.array([object()]), np.zeros(2, dtype=[("a", "i4")])):
        with pytest.raises(InvalidArgument, match="NumPy data of dtype"):
            round_trip(array)


def test_a_receiver_without_numpy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    np = pytest.importorskip("numpy")
    data = dumps(np.ones(3), US)
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(ObjectRefused, match="NumPy is not installed here"):
        load(data)


def _without_numpy(context: Context) -> bool:
    for name in [name for name in sys.modules if name.partition(".")[0] == "numpy"]:
        del sys.modules[name]
    round_trip({"a": [1.5, torch.ones(2), uuid.UUID(int=1)]})
    return "numpy" in sys.modules


def test_numpy_is_not_loaded_for_others() -> None:
    with cluster() as c:
        assert c.start(_without_numpy).result() is False
