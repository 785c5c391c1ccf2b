"""Every probe: what it shows, for which releases, and what was measured on the stock wheels."""

from __future__ import annotations

from dataclasses import replace

from gpuless.catalogue import baseline, cleanup, groups, modes, nccl2, others
from gpuless.measured import measured
from gpuless.model import Probe

_DECLARED = (baseline, groups, cleanup, others, modes, nccl2)
_STOCK = measured()

PROBES: tuple[Probe, ...] = tuple(
    replace(probe, stock=_STOCK.get(probe.id, {})) for module in _DECLARED for probe in module.PROBES
)
