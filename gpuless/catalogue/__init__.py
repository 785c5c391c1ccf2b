"""Every probe: what it shows, for which releases, and what was measured on the stock wheels."""

from __future__ import annotations

from dataclasses import replace

from gpuless.catalogue import baseline, cleanup, groups, modes, nccl2, others
from gpuless.measured import measured
from gpuless.model import Probe

_DECLARED = [p for module in (baseline, groups, cleanup, others, modes, nccl2) for p in module.PROBES]
_STOCK = measured()

PROBES: tuple[Probe, ...] = tuple(replace(probe, stock=_STOCK.get(probe.id, {})) for probe in _DECLARED)
