"""The outcomes of the probes on the stock wheels: `measured.json`, written only by `--record`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from build.paths import atomic_write, cache, locked
from gpuless.model import Form, Outcome, ProbeResult

MEASURED = Path(__file__).with_suffix(".json")
#: Outcomes of the harness, not of torch.
NOT_RECORDED = frozenset({Outcome.BROKEN, Outcome.NOT_INJECTED})


def measured() -> Mapping[str, Mapping[str, Outcome]]:
    if not MEASURED.is_file():
        return {}
    table = json.loads(MEASURED.read_text(encoding="utf-8"))
    return {probe: {r: Outcome[name] for r, name in row.items()} for probe, row in table.items()}


def record(results: Iterable[ProbeResult]) -> tuple[str, ...]:
    """Record the outcomes of stock wheels; return the probes whose outcome cannot be recorded.

    Raises:
        ValueError: results of a patched wheel.
    """
    refused: list[str] = []
    with locked(cache("gpuless") / MEASURED.name, "the record of measured outcomes"):
        table = {probe: {r: o.name for r, o in row.items()} for probe, row in measured().items()}
        for result in results:
            if result.form is not Form.STOCK:
                raise ValueError("only outcomes of stock wheels are recorded")
            if result.got in NOT_RECORDED:
                refused.append(result.probe.id)
            else:
                table.setdefault(result.probe.id, {})[result.release] = result.got.name
        with atomic_write(MEASURED) as part:
            part.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return tuple(refused)
