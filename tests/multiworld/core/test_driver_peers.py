"""Members compare their settings before NCCL sees them, and a communicator of our own ends."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from multiworld.backends import nccl
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


class Library:
    """NVIDIA's bindings, as far as an abort needs them; notes down what is called."""

    def __init__(self, version: int, revokes: bool) -> None:
        self.called: list[str] = []
        self._version, self._revokes = version, revokes

    def get_version(self) -> int:
        return self._version

    def comm_revoke(self, _: Any, __: int) -> None:
        self.called.append("revoke")
        if not self._revokes:
            raise RuntimeError("it cannot be revoked")

    def comm_get_async_error(self, _: Any) -> int:
        return 0

    def comm_abort(self, _: Any) -> None:
        self.called.append("abort")


@pytest.mark.parametrize(
    ("version", "revokes", "called"),
    [
        (22703, True, ["abort"]),
        (nccl.REVOKES_FROM, True, ["revoke", "abort"]),
        (nccl.REVOKES_FROM, False, ["revoke", "abort"]),
    ],
    ids=["too old", "revoked", "the revoke fails"],
)
def test_an_abort_revokes_first_where_nccl_can(
    version: int, revokes: bool, called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(version, revokes)
    monkeypatch.setattr(nccl, "bindings", lambda: library)
    communicator = nccl.NcclCommunicator(Member("w", 0, 0, 2, "cuda:0"))
    communicator._comm = object()
    communicator.abort()
    communicator.abort()  # there is nothing left of it
    assert library.called == called
