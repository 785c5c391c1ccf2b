"""The data of the probes: the defect that each shows, its expected outcome, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType


class Form(Enum):
    """The kind of wheel that is probed."""

    STOCK = "stock"
    PATCHED = "patched"


class Patch(Enum):
    """The patch of the `nccl` series that a probe is about, or why it belongs to none."""

    REMOTE_ERROR = "remote-error"
    GROUP_GUARD = "group-guard"
    GROUP_LEAK = "group-leak"
    CLEANUP_ONLY = "cleanup-only"
    GROUP_HOLD = "group-hold"
    BOUNDED_SHUTDOWN = "bounded-shutdown"
    PRIVATE_STREAM = "private-stream"
    LOG_PREFIX = "log-prefix"
    COMMUNICATOR_MAPS = "communicator-maps"
    EVENT_CACHE = "event-cache"
    UNCHANGED = "unchanged"  # other modes: stock and patched must behave the same
    BASELINE = "baseline"  # sound before and after: shows that harness and wheel work


class Outcome(Enum):
    """The outcome of a probe's process. All but `OK` are faults, each of a different kind."""

    OK = "ok"  # the caller got its error, the process and the other world went on
    TERMINATED = "terminated"  # a PyTorch thread ended the process (SIGABRT)
    GROUP_LEAKED = "group leaked"  # NCCL's thread-local group stayed open
    NOT_LAUNCHED = "not launched"  # another world's operation never reached its stream
    UNCONVERTIBLE = "unconvertible"  # the error itself could not be converted
    WRONG_EXCEPTION = "wrong exception"  # an exception, but not DistBackendError
    NO_EXCEPTION = "no exception"  # the failure was not noticed
    NOT_ABORTED = "not aborted"  # alive, but the broken world's communicator was not aborted
    USED_AFTER_FREE = "used after free"  # of a communicator's, an event's or a stream's memory
    DATA_RACE = "data race"  # a thread changed what another one reads, without a lock
    STALLED = "stalled"  # no result within the deadline
    LEAKED = "leaked"  # something stays after each process group
    WRONG_RECORD = "wrong record"  # the flight recorder does not show what was run
    CRASHED = "crashed"  # any other signal
    NOT_INJECTED = "not injected"  # the harness: no injection fired, so the probe shows nothing
    BROKEN = "broken"  # the harness or the probe program itself failed


class Verdict(Enum):
    """Expected against got."""

    AS_EXPECTED = "as expected"
    MISMATCH = "MISMATCH"
    NOT_MEASURED = "not measured"  # the outcome of stock on this release is not recorded


@dataclass(frozen=True, slots=True)
class Probe:
    """One small program that shows one defect.

    Args:
        id: its name, unique.
        patch: the patch whose defect it shows.
        title: what it does, one line.
        program: the module in `gpuless/probes` that runs in the probed interpreter, or one of its functions but `run`;
            that of a test by its path, without `.py`.
        args: the program's arguments, plain values.
        environment: set for its process, on top of the harness's own; an empty value removes a variable.
        fires: injection sites; at least one must have been hit.
        since, before: the releases it is for, `since <= release < before` (major, minor).
        without: releases (major, minor) in between whose code never makes the injected call.
        stock: outcome measured on stock, by release; other releases were not measured.
        evidence: regular expression that the output must match where stock ends the process, which shows
            that it ended for the right reason; other outcomes need no evidence.
        patched: outcome expected of a patched wheel; None: the same as stock.
        misuses: whether the program uses handles after their end on purpose; elsewhere that is no success.
        timeout: hard deadline of the process, in seconds.
    """

    id: str
    patch: Patch
    title: str
    program: str
    args: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    fires: tuple[str, ...] = ()
    since: tuple[int, int] = (2, 0)
    before: tuple[int, int] = (99, 0)
    without: frozenset[tuple[int, int]] = frozenset()
    stock: Mapping[str, Outcome] = field(default_factory=lambda: MappingProxyType({}))
    evidence: str = ""
    patched: Outcome | None = Outcome.OK
    misuses: bool = False
    timeout: float = 60.0

    def covers(self, release: str) -> bool:
        """Tell if the probe is for this release, e.g. "2.6.0"."""
        major, minor = (int(part) for part in release.split(".")[:2])
        number = major, minor
        return self.since <= number < self.before and number not in self.without

    def expected(self, form: Form, release: str) -> Outcome | None:
        """Return the outcome expected of this form of a release, None where it was not measured."""
        if form is Form.PATCHED and self.patched is not None:
            return self.patched
        return self.stock.get(release)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The outcome of one probe on one interpreter.

    Args:
        probe: the probe.
        release: the probed torch, e.g. "2.6.0".
        form: the form it was judged as.
        got: its outcome.
        verdict: expected against got.
        seconds: wall time of the process.
        detail: what the program observed (exception, group depth, counters), or the end of its output.
        output: the end of the process's standard error.
    """

    probe: Probe
    release: str
    form: Form
    got: Outcome
    verdict: Verdict
    seconds: float
    detail: Mapping[str, object]
    output: str
