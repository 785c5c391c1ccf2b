"""Collectives of tensors on the device, between real processes on nccl (simulated)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.multiworld.device import collective_acts
from tests.multiworld.device.ranks import backends, has_bindings
from tests.multiworld.device.simulated import Cluster

assert has_bindings  # named in the marks of ``backends``
pytestmark = pytest.mark.parametrize("backend", backends())


def count(begin: float, length: int = 4, step: float = 1.0) -> list[float]:
    return [begin + step * place for place in range(length)]


def expected(rank: int, size: int) -> dict[str, Any]:
    """Return what each collective of ``collective_acts.collectives`` leaves."""
    total = sum(range(size))
    pieces = [count(r) for r in range(size)]
    return {
        "broadcast": count(1),
        "sum": count(total, step=size),
        "max": count(size - 1),
        "avg": count(total / size),
        "reduce": count(total, step=size) if rank == 1 else None,
        "all_gather": pieces,
        "all_gather_into_tensor": [value for piece in pieces for value in piece],
        "gather": pieces if rank == 1 else [],
        "scatter": count(10.0 * rank),
        "reduce_scatter": count(10.0 * rank * size + total, step=size),
        "reduce_scatter_tensor": count(4.0 * rank * size + total, step=size),
        "all_to_all": [count(10.0 * r + rank, r + 1) for r in range(size)],
        "all_to_all_single": [value for r in range(size) for value in count(100.0 * r + 2 * rank, 2)],
    }


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("stream", [False, True])
def test_every_collective(members: Cluster, size: int, stream: bool) -> None:
    for rank, found in enumerate(members.all(size, collective_acts.collectives, size, stream)):
        assert found == expected(rank, size)


def test_cpu_tensors_and_objects_in_the_same_world(members: Cluster) -> None:
    for rank, found in enumerate(members.all(2, collective_acts.on_both)):
        assert found["large"] == 3.0
        assert found["rows"] == [float(rank), 10.0 + rank]
        assert "float32 on the device" in found["error"]
        assert found["again"] == count(0, step=2.0)
        assert found["objects"] == [{"rank": 0}, {"rank": 1}]


def test_a_cancelled_collective_goes_on_from_copies(members: Cluster) -> None:
    left, other = members.all(2, collective_acts.late_member)
    assert left == ("CancelledError", [-7.0, -7.0])
    assert other == [1.0, 3.0]


def test_collectives_of_a_group(members: Cluster) -> None:
    """Ranks, roots and the order of parts are the group's."""
    pair = [count(2, step=2.0), count(0), [[2.0, 3.0], [0.0, 1.0]]]
    assert members.all(3, collective_acts.of_a_group) == [pair, None, pair]


def test_the_only_member(members: Cluster) -> None:
    assert members.all(1, collective_acts.alone) == [[count(0), count(0)]]
