"""`remote-error`: releases before 2.4 cannot convert ncclRemoteError, so the message hides what happened."""

from __future__ import annotations

from tests.gpuless.catalogue.measured import OK, measured
from tests.gpuless.model import Outcome, Patch, Probe

PROBES: tuple[Probe, ...] = (
    *(
        Probe(
            id=f"remote-error-{operation}",
            patch=Patch.REMOTE_ERROR,
            title=f"{operation} fails with ncclRemoteError: the message says so",
            program="sync_failure",
            args={"operation": operation, "judge": "message"},
            fires=("ncclSend", "ncclRecv", "ncclGather", "ncclScatter", "ncclAlltoAll"),
            stock=measured(),
        )
        for operation in ("gather", "scatter", "all_to_all")
    ),
    Probe(
        id="remote-error-group-end",
        patch=Patch.REMOTE_ERROR,
        title="the end of a send's group fails with ncclRemoteError: the message says so",
        program="sync_failure",
        args={"operation": "send", "sites": ["ncclGroupEnd"], "judge": "message"},
        fires=("ncclGroupEnd",),
        stock=measured(),
    ),
)
