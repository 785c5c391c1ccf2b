"""What those outside of a program see: probes, scrapers, routers, log collectors."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import socket
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
from procs import wait_until
from table import members

from multiworld import InvalidArgument, MultiWorld, RendezvousError, Want, WorldBroken
from multiworld.observe.endpoint import Endpoint
from multiworld.observe.json_log import JsonLog

SECONDS = 30.0
ROOT = Path(__file__).resolve().parents[3]


def _get(endpoint: Endpoint, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(endpoint.url + path, timeout=SECONDS) as answer:  # noqa: S310 - our own server
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def _registry() -> Any:
    prometheus = pytest.importorskip("prometheus_client", reason="the metrics extra is not installed")
    return prometheus.CollectorRegistry()


def test_readiness_over_http(store: str) -> None:
    with MultiWorld() as mw, Endpoint(mw, registry=_registry()) as endpoint:
        assert _get(endpoint, "/ready")[0] == 200, "nothing is wanted"
        with mw.maintain({"w": Want(rank=0, size=2, store=store)}) as sup, MultiWorld() as other:
            code, text = _get(endpoint, "/ready")
            (world,) = json.loads(text)["worlds"]
            assert (code, world["state"], world["ready"]) == (503, "joining", False)
            peer = other.sync.join("w", 1, 2, store=store)
            sup.wait_ready(SECONDS)
            assert _get(endpoint, "/ready")[0] == 200
            peer.abort("on purpose")
            wait_until(lambda: _get(endpoint, "/ready")[0] == 503, SECONDS, "the break is not seen")
            code, text = _get(endpoint, "/status")
            (world,) = json.loads(text)["worlds"]
            assert (code, world["state"], world["generation"]) == (200, "broken", 1)
            assert "on purpose" in world["failure"]
            sup.reconcile()
            peer.sync.rejoin()
            sup.wait_ready(SECONDS)
            assert _get(endpoint, "/ready")[0] == 200
            sup.drain()
            assert _get(endpoint, "/ready")[0] == 503
        assert _get(endpoint, "/nothing")[0] == 404


def test_metrics_are_beside_it(store: str) -> None:
    registry = _registry()
    with MultiWorld() as mw, Endpoint(mw, registry=registry) as endpoint:
        mw.sync.join("w", 0, 1, store=store)
        assert 'multiworld_world_active{world="w"} 1.0' in _get(endpoint, "/metrics")[1]
        endpoint.close()
        endpoint.close()
        assert not list(registry.collect()), "closed with it"
        with pytest.raises(urllib.error.URLError):
            _get(endpoint, "/ready")


def test_readiness_needs_no_prometheus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with MultiWorld() as mw, Endpoint(mw) as endpoint:
        assert _get(endpoint, "/ready")[0] == 200
        code, text = _get(endpoint, "/metrics")
        assert code == 404
        assert "extra" in text


def test_an_endpoint_is_for_this_machine_alone_unless_it_is_told(store: str) -> None:
    with MultiWorld() as mw, Endpoint(mw, registry=_registry()) as endpoint:
        assert endpoint.url.startswith("http://127.0.0.1:")
        port = int(endpoint.url.rpartition(":")[2])
        listening = Path("/proc/net/tcp").read_text().split()
        assert f"0100007F:{port:04X}" in listening
        for wrong in ({"port": port}, {"host": "192.0.2.1"}, {"port": -1}, {"port": "x"}):
            with pytest.raises(InvalidArgument, match="cannot serve"):
                Endpoint(mw, registry=_registry(), **wrong)  # type: ignore[arg-type]


def test_a_silent_client_holds_nobody_up() -> None:
    with MultiWorld() as mw, Endpoint(mw, registry=_registry()) as endpoint:
        host, port = endpoint.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))), socket.create_connection((host, int(port))) as rude:
            rude.sendall(b"\x00\xff" * 3000)
            assert _get(endpoint, "/ready")[0] == 200


def test_the_worlds_of_a_store(store: str, tcp_store: str) -> None:
    with members(store, 2) as ((first, _), _):
        host, address = first.member.owner, first.member.source
        (world,) = host.sync.list(store)
        assert (world.name, world.generation, world.size, world.complete) == ("w", 1, 2, True)
        assert [member.rank for member in world.members] == [0, 1]
        assert {member.process for member in world.members} == {os.getpid()}
        assert {member.host for member in world.members} == {address.address}
        assert world.members[0].since > 0
    with MultiWorld() as mw:
        assert mw.sync.list(tcp_store) == ()
        for name in ("b", "a", "a/1"):
            mw.sync.join(name, 0, 1, store=tcp_store)
        mw["a"].abort("on purpose")
        mw["a"].sync.rejoin()
        found = mw.sync.list(tcp_store)
        assert [(world.name, world.generation) for world in found] == [("a", 2), ("a/1", 1), ("b", 1)]
        assert mw.sync.list(tcp_store) == found
        assert all(world.members[0].since > 0 for world in found)
        for wrong in (5, "nowhere"):
            with pytest.raises(InvalidArgument):
                mw.sync.list(wrong)
        with pytest.raises(InvalidArgument):
            mw.sync.list(tcp_store, timeout=0)


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    with MultiWorld() as mw, socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(RendezvousError, match="no store"):
            mw.sync.list(f"file://{tmp_path}/missing")
        assert not list(tmp_path.iterdir()), "looking makes no file"
        with pytest.raises(RendezvousError, match="what to do"):
            mw.sync.list(f"tcp://127.0.0.1:{silent.getsockname()[1]}", timeout=0.2)


def test_every_world_of_many_that_join_at_once_is_listed(tcp_store: str) -> None:
    names = [f"w{number}" for number in range(40)]
    with MultiWorld() as mw:
        joins = [
            threading.Thread(target=mw.sync.join, args=(name, 0, 1), kwargs={"store": tcp_store}) for name in names
        ]
        for join in joins:
            join.start()
        for join in joins:
            join.join(SECONDS)
        assert sorted(world.name for world in mw.sync.list(tcp_store)) == sorted(names)


def test_logs_as_json_lines(store: str) -> None:
    stream = io.StringIO()
    with MultiWorld() as mw, JsonLog(mw, stream) as log:
        mw.sync.join("w", 0, 1, store=store).abort("on purpose")
        mw.subscribe(lambda event: 1 / 0 if isinstance(event, WorldBroken) else None)
        logging.getLogger("multiworld.somewhere").warning("a %s", "record")
        mw["w"].sync.rejoin()
        log.close()
        log.close()
        logging.getLogger("multiworld.somewhere").warning("after")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    events = [(line["event"], line["world"], line["generation"], line["level"]) for line in lines if "event" in line]
    assert events == [
        ("WorldJoined", "w", 1, "INFO"),
        ("WorldBroken", "w", 1, "WARNING"),
        ("WorldJoined", "w", 2, "INFO"),
    ]
    (broken,) = (line for line in lines if line.get("event") == "WorldBroken")
    assert "on purpose" in broken["message"]
    (record,) = (line for line in lines if line["logger"] == "multiworld.somewhere")
    assert (record["message"], record["level"]) == ("a record", "WARNING")
    assert all(line["time"] > 0 for line in lines)


def test_the_dashboard_shows_what_is_exported(store: str) -> None:
    registry = _registry()
    text = (ROOT / "examples" / "grafana" / "multiworld.json").read_text(encoding="utf-8")
    dashboard = json.loads(text)
    with MultiWorld() as mw, Endpoint(mw, registry=registry):
        world = mw.sync.join("w", 0, 1, store=store)
        world.sync.all_reduce(torch.ones(1))
        families = {family.name: family for family in registry.collect()}
    exported = set()
    for family in families.values():
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
        exported |= {family.name + suffix for suffix in suffixes}
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    used = {name for query in queries for name in re.findall(r"multiworld_\w+", query)}
    assert used
    assert used <= exported
    labels = {label for query in queries for label in re.findall(r"(\w+)(?:=~?\")", query)}
    labels |= {
        label for query in queries for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(", ")
    }
    assert labels <= {"world", "instance", "job", "operation", "cause", "how", "peer", "le"}
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
