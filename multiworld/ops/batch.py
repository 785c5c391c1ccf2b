"""Several operations waited for as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from multiworld.errors import MultiWorldError
from multiworld.matching.operation import Operation

if TYPE_CHECKING:
    from multiworld.session import Session


class BatchOperation(Operation):
    """Done when all its parts are; fails with the first failure among them, when all are done."""

    __slots__ = ("_missing", "parts")

    def __init__(self, session: Session, count: int) -> None:
        super().__init__(session, "batch_p2p")
        self.parts: list[Operation] = []
        self._missing = count

    def take(self, parts: list[Operation]) -> None:
        """Wait for these, which may be done already."""
        self.parts = parts
        for part in parts:
            if part.done:
                self._missing -= 1
            else:
                part.parent = self
        self._check()

    def part_done(self) -> None:
        """One of the parts is done."""
        self._missing -= 1
        self._check()

    def withdraw(self) -> None:
        """See ``Operation.withdraw``."""
        self.withdrawn = True
        self.session.operations.discard(self)
        for part in self.parts:
            part.withdraw()

    def give_back(self) -> None:
        """See ``Operation.give_back``; its waiter may be woken before it is the turn of the parts to fail."""
        for part in self.parts:
            if not part.done:
                part.give_back()

    def loans(self) -> list[torch.Tensor]:
        """See ``Operation.loans``."""
        return [memory for part in self.parts for memory in part.loans()]

    def waiting_for(self) -> str:
        """See ``Operation.waiting_for``."""
        return ", ".join(part.waiting_for() for part in self.parts if not part.done)

    def _check(self) -> None:
        if self._missing == 0:
            self.finish = lambda _: [_result(part) for part in self.parts]
            self.complete()


def _result(part: Operation) -> int | None:
    try:
        value = part.result()
    except MultiWorldError as error:
        raise error.with_context(operation=f"batch_p2p ({part.name})") from None
    return value if part.name == "recv" else None
