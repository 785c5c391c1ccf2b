"""Members compare their settings before NCCL sees them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from multiworld.backends.device_members import Facts, Member, meet
from multiworld.backends.setup_store import SetupStore
from multiworld.errors import BackendFailed

SECONDS = 20.0
OURS = Facts(0, "nccl", "NCCL 2.27.3", "host", "0000:01:00.0")
THEIRS = replace(OURS, rank=1, device="0000:02:00.0")


def _met(*facts: Facts) -> list[str]:
    """Return the complaints of members whose stores reach each other; nothing if they fit together."""
    stores: list[SetupStore] = []

    def broadcast(place: int, key: str, value: bytes) -> None:
        for other, store in enumerate(stores):
            if other != place:
                store.receive(key, value)

    stores += [SetupStore(lambda *said, place=place: broadcast(place, *said), SECONDS) for place in range(len(facts))]

    def one(place: int) -> str:
        try:
            meet(stores[place], Member("w", place, place, len(facts), "cuda:0"), facts[place])
        except BackendFailed as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(facts)) as pool:
        return list(pool.map(one, range(len(facts))))


def test_members_that_fit_together() -> None:
    assert _met(OURS, THEIRS) == ["", ""]


def test_a_member_with_another_version_of_nccl() -> None:
    for rank, text in enumerate(_met(OURS, replace(THEIRS, version="NCCL 2.26.2"))):
        for words in (f"world 'w', rank {rank}", "NCCL 2.27.3", "NCCL 2.26.2", "what to do: install the same version"):
            assert words in text, text


@pytest.mark.parametrize("said", [b"\xff", b"[]", b'{"rank": 1}'], ids=["no text", "no facts", "few facts"])
def test_a_member_that_says_what_no_driver_says(said: bytes) -> None:
    store = SetupStore(lambda *_: None, SECONDS)
    store.receive("mw/driver/1", said)
    with pytest.raises(BackendFailed, match=r"(?s)world 'w', rank 0: member 1 .*another version of multiworld"):
        meet(store, Member("w", 0, 0, 2, "cuda:0"), OURS)
