"""Devices of the imitation: which ranks may share one, which are visible, what memory they have."""

from __future__ import annotations

from tests.gpuless.ranks import started

_INVALID_USAGE = 5


def test_two_ranks_on_one_device_are_refused(imitated: dict[str, str]) -> None:
    with started(2, imitated, NCCL_HOSTID="same") as ranks:
        identifier = ranks[0].ask("unique_id")
        for rank in ranks:
            rank.start("init", identifier, 2, rank.number)
        assert [rank.answer() for rank in ranks] == [_INVALID_USAGE] * 2
        assert "Duplicate GPU detected" in ranks[0].end()


def test_two_ranks_on_two_devices_are_not(imitated: dict[str, str]) -> None:
    with started(2, imitated, NCCL_HOSTID="same") as ranks:
        identifier = ranks[0].ask("unique_id")
        for rank in ranks:
            rank.start("init", identifier, 2, rank.number, device=rank.number)
        assert [rank.answer() for rank in ranks] == [0, 0]


def test_visible_devices_are_the_same_physical_ones(imitated: dict[str, str]) -> None:
    same = {**imitated, "NCCL_HOSTID": "same"}
    with started(1, same, CUDA_VISIBLE_DEVICES="1") as (first,), started(1, same) as (second,):
        assert (first.ask("device_count"), second.ask("device_count")) == (1, 2)
        identifier = first.ask("unique_id")
        first.start("init", identifier, 2, 0, device=0)
        second.start("init", identifier, 2, 1, device=1)
        assert (first.answer(), second.answer()) == (_INVALID_USAGE, _INVALID_USAGE)


def test_device_memory_is_counted(imitated: dict[str, str]) -> None:
    with started(1, imitated) as (rank,):
        before, total = rank.ask("memory")
        number = rank.ask("buffer", size=1 << 20)
        assert rank.ask("memory") == [before - (1 << 20), total]
        assert rank.ask("free", number) == 0
        assert rank.ask("memory") == [before, total]
        assert rank.ask("free", number) != 0, "freed twice"
        with rank.remote() as control:
            assert control.counters().misused == 1
