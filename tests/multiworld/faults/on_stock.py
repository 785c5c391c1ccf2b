"""Faults that official wheels do not survive, by release: these rows are expected to fail there, and only there.

A row that passes on such a wheel is reported as a failure, since its line here is wrong by then; but for one that
depends on which of two threads comes first.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

import pytest
import torch

from tests.multiworld.faults.backends import Backend, Kind
from tests.multiworld.torch_form import is_official, is_patched

ROW = Backend("torch-nccl", Kind.SIMULATED)
WATCHDOG = "the watchdog's error ends the process"
MONITOR = "the heartbeat monitor ends the process, since the watchdog hangs"
GUARD = "the end of the coalesced group throws in a destructor, which ends the process"
SWALLOWED = "an operation that the watchdog has aborted may be taken for done, since its event comes all the same"
PLAIN = "the error is a plain RuntimeError"
DUMPS = "the clean-up waits for dumps of the flight recorder, which are on by default"
TRACE = "the watchdog asks the interpreter for a stack trace, and ends the process when that is about to end"
FINALIZE = "shutdown() keeps locks in ncclCommFinalize that abort() waits for"
LEAK = "the group of calls stays open, and swallows the operations of all other groups"


class Group(Enum):
    """The group of torch's that a fault belongs to."""

    CLASSIC = auto()  # where the driver takes it
    NCCL2 = auto()  # likewise
    BY_NAME = auto()  # the classic one, which later releases have beside the other


@dataclass(frozen=True, slots=True)
class Known:
    """One row that an official wheel fails.

    Attributes:
        row: the test's file without its ending, its name, and its parameters without the backend's row.
        reason: what happens there.
        patch: of the series that cures it.
        since: first release with that.
        until: first release without it; None for no end yet.
        always: whether it does not depend on which thread comes first.
        group: whose fault it is.
    """

    row: str
    reason: str
    patch: str
    since: tuple[int, int] = (2, 0)
    until: tuple[int, int] | None = None
    always: bool = True
    group: Group = Group.CLASSIC

    def holds(self, release: tuple[int, int]) -> bool:
        """Return whether the official wheel of ``release`` fails the row."""
        return self.since <= release and (self.until is None or release < self.until)


_FAILURE, _WATCHDOG = "test_nccl_failures::test_failure", "test_nccl_failures::test_failure_of_the_watchdog"
_LAUNCH = "test_torch_groups::test_a_launch_fails"
_SHUTDOWN = "test_torch_groups::test_a_shutdown_is_aborted"
_EXAMPLES = "test_examples::test_manual"
#: the flight recorder is on; seen with this release
_RECORDS = (2, 13)
KNOWN: tuple[Known, ...] = (
    Known(f"{_FAILURE}[remote error]", SWALLOWED, "cleanup-only", always=False),
    Known(f"{_FAILURE}[remote error, abort fails]", WATCHDOG, "cleanup-only", until=_RECORDS),
    # Stack traces keep the watchdog busy meanwhile, so that the driver's own abort may come first.
    Known(f"{_FAILURE}[remote error, abort fails]", WATCHDOG, "cleanup-only", since=_RECORDS, always=False),
    Known(f"{_FAILURE}[remote error, abort hangs]", MONITOR, "cleanup-only", since=(2, 2)),
    Known(f"{_WATCHDOG}[event query fails]", WATCHDOG, "cleanup-only"),
    Known(f"{_WATCHDOG}[event query hangs]", MONITOR, "cleanup-only", since=(2, 2)),
    Known("test_nccl_failures::test_lost_device[]", WATCHDOG, "cleanup-only"),
    Known(f"{_EXAMPLES}_several_worlds[]", TRACE, "cleanup-only", since=_RECORDS, always=False),
    Known(f"{_EXAMPLES}_single_world_cleans_up[]", DUMPS, "cleanup-only", since=(2, 9)),
    Known(f"{_EXAMPLES}_single_world_cleans_up[]", TRACE, "none yet", since=(2, 15), always=False, group=Group.NCCL2),
    *(
        Known(f"{_LAUNCH}[{operation}]", GUARD, "group-guard", group=Group.BY_NAME)
        for operation in ("all_reduce_coalesced", "all_gather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced")
    ),
    *(
        Known(f"{_LAUNCH}[{operation}]", LEAK, "group-leak", group=Group.BY_NAME)
        for operation in ("coalescing_manager", "send", "recv", "gather", "scatter", "all_to_all")
    ),
    Known(f"{_LAUNCH}[all_to_all_single]", LEAK, "group-leak", until=(2, 14), group=Group.BY_NAME),
    Known(f"{_LAUNCH}[all_to_all_single]", PLAIN, "group-leak", since=(2, 14), group=Group.BY_NAME),
    *(
        Known(f"{_SHUTDOWN}[{communicator}]", FINALIZE, "bounded-shutdown", since=(2, 6), group=Group.BY_NAME)
        for communicator in ("blocking", "non-blocking")
    ),
)


def expect(items: list[pytest.Item]) -> None:
    """Mark the rows on torch's group that this wheel is known to fail."""
    major, minor = torch.__version__.split(".")[:2]
    if is_patched():
        return
    groups = {Group.BY_NAME, Group.CLASSIC if is_official() else Group.NCCL2}
    known = {one.row: one for one in KNOWN if one.group in groups and one.holds((int(major), int(minor)))}
    for item in items:
        one = known.get(_row(item))
        if one is not None:
            item.add_marker(pytest.mark.xfail(strict=one.always, reason=f"stock: {one.reason} ({one.patch})"))


def _row(item: pytest.Item) -> str:
    """The item as ``Known.row`` has it; empty if it is no row on simulated torch groups."""
    name, _, parameters = item.name.partition("[")
    row, rest = str(ROW), parameters.removesuffix("]")
    return f"{item.path.stem}::{name}[{rest[len(row) :].lstrip('-')}]" if rest.startswith(row) else ""
