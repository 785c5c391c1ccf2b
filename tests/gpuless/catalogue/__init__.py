"""Every probe: what it shows, for which releases, and what was measured on the stock wheels."""

from tests.gpuless.catalogue import baseline, cleanup, groups, modes, recorder, remote_error
from tests.gpuless.model import Probe

PROBES: tuple[Probe, ...] = (
    *baseline.PROBES,
    *remote_error.PROBES,
    *groups.PROBES,
    *cleanup.PROBES,
    *modes.PROBES,
    *recorder.PROBES,
)
