"""Every probe: what it shows, for which releases, and what was measured on the stock wheels."""

from __future__ import annotations

from dataclasses import replace

from gpuless.catalogue import (
    baseline,
    cleanup,
    data_races,
    groups,
    modes,
    nccl2,
    recorder,
    regions,
    remote_error,
    shutdown,
    streams,
)
from gpuless.measured import measured
from gpuless.model import Probe

_DECLARED = (
    *baseline.PROBES,
    *remote_error.PROBES,
    *groups.PROBES,
    *cleanup.PROBES,
    *regions.PROBES,
    *shutdown.PROBES,
    *streams.PROBES,
    *data_races.PROBES,
    *modes.PROBES,
    *recorder.PROBES,
    *nccl2.PROBES,
)
_STOCK = measured()

PROBES: tuple[Probe, ...] = tuple(replace(probe, stock=_STOCK.get(probe.id, {})) for probe in _DECLARED)
