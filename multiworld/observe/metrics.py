"""Prometheus metrics of the worlds of a ``MultiWorld``; needs the extra ``metrics``.

    from prometheus_client import start_http_server
    from multiworld.observe.metrics import Metrics

    metrics = Metrics(mw)
    start_http_server(9100)

The package counts as worlds run, scraped or not: ``Metrics`` may be made at any time, and a scrape puts the numbers
together. docs/metrics.md lists the series.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

from multiworld.config import WorldState
from multiworld.errors import INSTALL, BackendUnavailable, InvalidArgument
from multiworld.matching.histogram import Histogram
from multiworld.session.counters import Counters
from multiworld.worlds.multi_world import MultiWorld
from multiworld.worlds.world import World

_OPERATION, _PEER = ["world", "operation"], ["world", "peer"]


def prometheus(name: str) -> Any:
    """Import a module of prometheus-client; raises ``BackendUnavailable`` if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BackendUnavailable(
            None,
            "prometheus-client is not installed",
            cause="metrics are an optional extra",
            remedy=INSTALL.format(extra="[metrics]"),
        ) from error


def _cumulative(histogram: Histogram) -> tuple[list[tuple[str, float]], float]:
    """The buckets of a histogram as Prometheus has them, each with those below it, and the sum."""
    total, bounds = histogram.total, (*map(str, histogram.bounds), "+Inf")
    return list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True)), total


class Metrics:
    """A Prometheus collector; registers itself.

    Args:
        registry: a ``prometheus_client.CollectorRegistry``; None is the default one.

    Raises:
        BackendUnavailable: prometheus-client is not installed.
        InvalidArgument: no ``MultiWorld`` or registry, or the registry has the metrics of another one: their worlds may
            have the same names, and the series of one would hide those of the other.
    """

    def __init__(self, worlds: MultiWorld, registry: Any = None) -> None:
        if not hasattr(worlds, "history") or not hasattr(worlds, "worlds"):
            raise InvalidArgument(what=f"{type(worlds).__name__} given as worlds", remedy="pass a MultiWorld")
        client = prometheus("prometheus_client")
        self._families = prometheus("prometheus_client.core")
        self._worlds = worlds
        self._registry = client.REGISTRY if registry is None else registry
        if not isinstance(self._registry, client.CollectorRegistry):
            raise InvalidArgument(what=f"registry is {registry!r}", remedy="pass a CollectorRegistry, or None")
        try:
            self._registry.register(self)
        except ValueError as error:
            what = f"the registry has series of these names: {str(error)[:80]}..."
            cause = "Metrics was made twice: Endpoint makes one, too"
            remedy = "keep one Metrics per registry: pass registry=CollectorRegistry(), or close() the first"
            raise InvalidArgument(what=what, cause=cause, remedy=remedy) from None

    def close(self) -> None:
        """Unregister; a second time does nothing."""
        with contextlib.suppress(KeyError):
            self._registry.unregister(self)

    def collect(self) -> Iterator[Any]:
        worlds = list(self._worlds.worlds.values())
        yield from self._states(worlds)
        yield from self._traffic([(world.name, world.tally) for world in worlds])
        yield from self._incidents()

    #: with this, a registry looks for our names, whether it was made with ``auto_describe`` or not
    describe = collect

    def _states(self, worlds: list[World]) -> Iterator[Any]:
        active = [((world.name,), float(world.state is WorldState.ACTIVE)) for world in worlds]
        generations = [((world.name,), world.generation) for world in worlds]
        yield self._family("Gauge", "world_active", "1 while the world is active, else 0", ["world"], active)
        yield self._family("Gauge", "world_generation", "Generation of the world", ["world"], generations)
        sizes = [((world.name,), world.size) for world in worlds]
        yield self._family("Gauge", "world_size", "Members of the world", ["world"], sizes)

    def _traffic(self, tallies: list[tuple[str, Counters]]) -> Iterator[Any]:
        for labels, name, text, attribute in (
            (_OPERATION, "operations", "Operations started", "operations"),
            (_PEER, "lane_sent_bytes", "Bytes written to a peer", "sent"),
            (_PEER, "lane_received_bytes", "Bytes read from a peer", "received"),
        ):
            counts = [((w, key), n) for w, tally in tallies for key, n in tuple(getattr(tally, attribute).items())]
            yield self._family("Counter", name, text, labels, counts)
        waits = [((w, name), one) for w, tally in tallies for name, one in tuple(tally.latencies.items())]
        text = "Seconds that callers waited for operations that succeeded"
        yield self._histograms("operation", text, _OPERATION, waits)

    def _incidents(self) -> Iterator[Any]:
        history = self._worlds.history
        joins = [((world,), count) for world, count in tuple(history.joins.items())]
        yield self._family("Counter", "joins", "Generations joined", ["world"], joins)
        cause = ["world", "cause", "how"]
        yield self._family("Counter", "breaks", "Breaks, by error and LossReason", cause, tuple(history.breaks.items()))
        suspicions = tuple(history.suspicions.items())
        yield self._family("Counter", "suspicions", "Times a peer was silent for long", _PEER, suspicions)
        stalls = "Times our own liveness thread did not run"
        yield self._family("Counter", "own_stalls", stalls, [], [((), history.stalls)])
        for name, text, histograms in (
            ("join", "Seconds that joins and rejoins took", history.joining),
            ("detection", "Seconds from a silent peer's last sign of life to the break", history.detection),
            ("outage", "Seconds from a break to the return under a new generation", history.outage),
        ):
            found = [((world,), histogram) for world, histogram in tuple(histograms.items())]
            yield self._histograms(name, text, ["world"], found)

    def _family(self, kind: str, name: str, text: str, labels: list[str], samples: Iterable[Any]) -> Any:
        family = getattr(self._families, f"{kind}MetricFamily")(f"multiworld_{name}", text, labels=labels)
        for values, number in samples:
            family.add_metric([str(value) for value in values], number)
        return family

    def _histograms(self, name: str, text: str, labels: list[str], samples: Iterable[Any]) -> Any:
        family = self._families.HistogramMetricFamily(f"multiworld_{name}_seconds", text, labels=labels)
        for values, histogram in samples:
            family.add_metric(list(values), *_cumulative(histogram))
        return family
