"""Prometheus metrics of the worlds of a ``MultiWorld``; needs the extra ``metrics``.

    from prometheus_client import start_http_server
    from multiworld.observe.metrics import Metrics

    metrics = Metrics(mw)
    start_http_server(9100)

The package counts as worlds run, scraped or not: ``Metrics`` may be made at any time, and a scrape puts the numbers
together. docs/metrics.md lists the series.
"""

from __future__ import annotations

import importlib
import threading
import weakref
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from multiworld.config import WorldState
from multiworld.errors import INSTALL, BackendUnavailable, InvalidArgument
from multiworld.matching.histogram import Histogram
from multiworld.worlds.multi_world import MultiWorld
from multiworld.worlds.world import World

_OPERATION = ["world", "operation"]


def _prometheus(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BackendUnavailable(
            None,
            "prometheus-client is not installed",
            cause="metrics are an optional extra",
            remedy=INSTALL.format(extra="[metrics]"),
        ) from error


_registering = threading.Lock()
#: registries that have metrics of ours; a registry looks for our names only if it was made with ``auto_describe``
_registered: weakref.WeakSet[Any] = weakref.WeakSet()


def _cumulative(histogram: Histogram) -> tuple[list[tuple[str, float]], float]:
    """The buckets of a histogram as Prometheus has them, each with those below it, and the sum."""
    total, bounds = histogram.total, (*map(str, histogram.bounds), "+Inf")
    return list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True)), total


def _taken(what: str) -> InvalidArgument:
    cause = "Metrics was made twice, or something else has series of these names"
    remedy = "keep one Metrics per registry: pass registry=CollectorRegistry(), or close() the first"
    return InvalidArgument(what=what, cause=cause, remedy=remedy)


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
        client = _prometheus("prometheus_client")
        self._families = _prometheus("prometheus_client.core")
        self._worlds = worlds
        self._registry = client.REGISTRY if registry is None else registry
        if not isinstance(self._registry, client.CollectorRegistry):
            raise InvalidArgument(what=f"registry is {registry!r}", remedy="pass a CollectorRegistry, or None")
        self._closed = False
        with _registering:
            self._register()

    def _register(self) -> None:
        if self._registry in _registered:
            raise _taken("the registry has the metrics of a MultiWorld already")
        try:
            self._registry.register(self)
        except ValueError as error:
            raise _taken(str(error)) from None
        _registered.add(self._registry)

    def close(self) -> None:
        """Unregister; a second time does nothing."""
        with _registering:
            if not self._closed:
                self._closed = True
                self._registry.unregister(self)
                _registered.discard(self._registry)

    def collect(self) -> Iterator[Any]:
        worlds = list(self._worlds.worlds.values())
        yield from self._states(worlds)
        yield from self._traffic(worlds)
        yield from self._incidents()
        yield from self._durations(worlds)

    def _states(self, worlds: list[World]) -> Iterator[Any]:
        state = self._gauge("multiworld_world_active", "1 while the world is active, else 0", ["world"])
        generation = self._gauge("multiworld_world_generation", "Generation of the world", ["world"])
        size = self._gauge("multiworld_world_size", "Members of the world", ["world"])
        for world in worlds:
            state.add_metric([world.name], float(world.state is WorldState.ACTIVE))
            generation.add_metric([world.name], world.generation)
            size.add_metric([world.name], world.size)
        yield from (state, generation, size)

    def _traffic(self, worlds: list[World]) -> Iterator[Any]:
        operations = self._counter("multiworld_operations", "Operations started", _OPERATION)
        sent = self._counter("multiworld_lane_sent_bytes", "Bytes written to a peer", ["world", "peer"])
        received = self._counter("multiworld_lane_received_bytes", "Bytes read from a peer", ["world", "peer"])
        for world in worlds:
            tally = world.tally
            for name, count in tuple(tally.operations.items()):
                operations.add_metric([world.name, name], count)
            for family, counts in ((sent, tally.sent), (received, tally.received)):
                for peer, count in tuple(counts.items()):
                    family.add_metric([world.name, str(peer)], count)
        yield from (operations, sent, received)

    def _incidents(self) -> Iterator[Any]:
        history = self._worlds.history
        joins = self._counter("multiworld_joins", "Generations joined", ["world"])
        breaks = self._counter("multiworld_breaks", "Breaks, by error and LossReason", ["world", "cause", "how"])
        suspicions = self._counter("multiworld_suspicions", "Times a peer was silent for long", ["world", "peer"])
        stalls = self._counter("multiworld_own_stalls", "Times our own liveness thread did not run", [])
        for world, count in tuple(history.joins.items()):
            joins.add_metric([world], count)
        for (world, cause, how), count in tuple(history.breaks.items()):
            breaks.add_metric([world, cause, how], count)
        for (world, peer), count in tuple(history.suspicions.items()):
            suspicions.add_metric([world, str(peer)], count)
        stalls.add_metric([], history.stalls)
        yield from (joins, breaks, suspicions, stalls)

    def _durations(self, worlds: list[World]) -> Iterator[Any]:
        text = "Seconds that callers waited for operations that succeeded"
        operations = self._families.HistogramMetricFamily("multiworld_operation_seconds", text, labels=_OPERATION)
        for world in worlds:
            for name, histogram in tuple(world.tally.latencies.items()):
                operations.add_metric([world.name, name], *_cumulative(histogram))
        yield operations
        history = self._worlds.history
        for name, text, histograms in (
            ("join", "Seconds that joins and rejoins took", history.joining),
            ("detection", "Seconds from a silent peer's last sign of life to the break", history.detection),
            ("outage", "Seconds from a break to the return under a new generation", history.outage),
        ):
            family = self._families.HistogramMetricFamily(f"multiworld_{name}_seconds", text, labels=["world"])
            for world_name, histogram in tuple(histograms.items()):
                family.add_metric([world_name], *_cumulative(histogram))
            yield family

    def _gauge(self, name: str, text: str, labels: list[str]) -> Any:
        return self._families.GaugeMetricFamily(name, text, labels=labels)

    def _counter(self, name: str, text: str, labels: list[str]) -> Any:
        return self._families.CounterMetricFamily(name, text, labels=labels)
