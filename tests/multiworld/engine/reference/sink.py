"""The reference engine's ways out: to the peers, and to its host."""

from __future__ import annotations

from typing import Any, Protocol

from multiworld.matching import operation


class Sent(Protocol):
    """Owner of a frame, told when the last byte of it is written."""

    def on_sent(self) -> None:
        """All of the frame is written."""


class Sink(Protocol):
    """Takes the frames for one peer, and fills the memory that frames of that peer were given."""

    @property
    def peer(self) -> int: ...
    @property
    def receiving(self) -> bool: ...
    def put(
        self,
        kind: int,
        dtype: int = 0,
        flags: int = 0,
        seq: int = 0,
        key: int = 0,
        payload: tuple[Any, ...] = (),
        nbytes: int = 0,
        operation: Sent | None = None,
    ) -> None:
        """Send a frame; ``operation`` is told when all of it is written."""

    def hold(self) -> None:
        """Let frames without a payload go out together, from now until ``release``."""

    def release(self) -> None:
        """Write what is held."""

    def disown(self, operation: Sent) -> None:
        """Copy what is not written yet of ``operation``: its memory is the caller's again."""

    def redirect(self, whole: memoryview, own: memoryview) -> None:
        """Let the payload under way go to ``own`` instead of ``whole``, what has come of it included."""


class SetUp(Protocol):
    """A backend that is being set up."""

    def receive(self, name: bytes, value: bytes) -> None:
        """A member's value has come."""


class Host(operation.Host, Protocol):
    """The host of the reference engine."""

    def value_slot(self, peer: int, gid: int, split: int, nbytes: int) -> SetUp | None:
        """The backend that a value of ``peer`` is for; None, and the generation ends, if it can be for none."""

    def on_bye(self, peer: int, *, gives_up: bool) -> None:
        """``peer`` has said that it leaves, and nothing follows."""
