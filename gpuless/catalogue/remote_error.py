"""`remote-error`: releases before 2.4 cannot convert ncclRemoteError, so the message hides what happened."""

from __future__ import annotations

from dataclasses import replace

from gpuless.catalogue.groups import CALLS, UNGROUPED, failing
from gpuless.model import Patch, Probe

PROBES: tuple[Probe, ...] = (
    *(
        failing(
            f"remote-error-{operation}",
            Patch.REMOTE_ERROR,
            f"{operation} fails with ncclRemoteError: the message says so",
            CALLS,
            operation=operation,
            judge="message",
        )
        for operation in ("gather", "scatter", "all_to_all")
    ),
    replace(
        failing(
            "remote-error-group-end",
            Patch.REMOTE_ERROR,
            "the end of a send's group fails with ncclRemoteError: the message says so",
            ("ncclGroupEnd",),
            operation="send",
            sites=["ncclGroupEnd"],
            judge="message",
        ),
        without=UNGROUPED,
    ),
)
