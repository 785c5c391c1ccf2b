"""Groups are told apart by a number of 32 bits: two that have the same one must not take each other's messages."""

from __future__ import annotations

import gc
import random
import zlib

import pytest
import torch
from table import members

from multiworld import InvalidArgument, TensorMismatch


def labels_of_one_number(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[str, str]:
    """Labels with which groups of these ranks have the same number, although something of them differs."""
    seen: dict[int, str] = {}
    draw = random.Random(0)  # a checksum is linear: texts that count up may never have the same
    while True:
        label = draw.randbytes(8).hex()
        number = zlib.crc32(repr((other, label)).encode())
        if number in seen:
            return seen[number], label
        seen[zlib.crc32(repr((one, label)).encode())] = label


@pytest.mark.parametrize("ranks", [(0, 1), (0, 1, 2)])
def test_a_second_group_of_the_same_number_is_refused(store: str, ranks: tuple[int, ...]) -> None:
    one, other = labels_of_one_number((0, 1), ranks)
    with members(store, 3) as (worlds, _):
        first = worlds[0].group((0, 1), one)
        assert worlds[0].group((0, 1), one).gid == first.gid, "the same group may be made again"
        with pytest.raises(InvalidArgument, match="have the same number"):
            worlds[0].group(ranks, other)
        assert worlds[0].group((0, 1), "another").gid != first.gid


def test_members_that_mean_different_groups_of_one_number_hear_of_it(store: str) -> None:
    labels = labels_of_one_number((0, 1), (0, 1))
    with members(store, 2) as (worlds, pool):
        groups = [world.group((0, 1), label) for world, label in zip(worlds, labels, strict=True)]
        assert groups[0].gid == groups[1].gid

        def call(group: object) -> str:
            with pytest.raises(TensorMismatch, match="groups of different ranks or labels") as caught:
                group.sync.all_reduce(torch.ones(1))  # type: ignore[attr-defined]
            return caught.value.remedy

        assert all("label" in remedy for remedy in pool.map(call, groups))
        assert [world.failure for world in worlds] == [None, None]


@pytest.mark.parametrize("kept", [True, False])
def test_after_a_rejoin_the_numbers_of_living_groups_are_taken(store: str, kept: bool) -> None:
    one, other = labels_of_one_number((0, 1), (0, 1))
    with members(store, 2) as (worlds, pool):
        group = worlds[0].group((0, 1), one)
        if not kept:
            del group
            gc.collect()
        worlds[0].abort("on purpose")
        list(pool.map(lambda world: world.sync.rejoin(), worlds))
        if kept:
            with pytest.raises(InvalidArgument, match="have the same number"):
                worlds[0].group((0, 1), other)
        else:
            worlds[0].group((0, 1), other)
