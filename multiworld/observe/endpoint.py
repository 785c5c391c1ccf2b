"""Readiness, status and metrics of a process over HTTP, for programs that ask for it:

    from multiworld.observe.endpoint import Endpoint

    with MultiWorld() as mw, Endpoint(mw, port=9100):
        ...

``/ready`` answers 200 if every world is ready and 503 otherwise; it and ``/status`` tell what ``mw.status()`` returns,
as JSON. ``/metrics`` needs the extra ``metrics``, and answers 404 without it.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from multiworld.config import printed
from multiworld.errors import BackendUnavailable, InvalidArgument
from multiworld.observe.metrics import Metrics, prometheus

if TYPE_CHECKING:
    from multiworld.worlds.multi_world import MultiWorld


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128


class _ServerOnIPv6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    #: seconds that a client may be silent; it holds a thread
    timeout = 10

    def log_message(self, *_: Any) -> None:
        """Log nothing: probes come every few seconds."""


class Endpoint(contextlib.AbstractContextManager["Endpoint"]):
    """A server of ``/ready``, ``/status`` and ``/metrics``, from now until ``close``, or as a ``with`` block.

    Args:
        port: TCP port; 0 takes a free one.
        host: local address to listen on. Whoever reaches it may read all of it: there is no secret.
        registry: a ``prometheus_client.CollectorRegistry``, which gets the metrics of ``mw``; None is the default one.

    Attributes:
        url: address of the server, with the real port.

    Raises:
        InvalidArgument: the port is in use, the address is not ours, or ``Metrics`` refuses the registry.
    """

    def __init__(self, mw: MultiWorld, port: int = 0, host: str = "127.0.0.1", registry: Any = None) -> None:
        self._mw = mw
        self._metrics: Callable[..., Iterable[bytes]] | None = None
        with contextlib.ExitStack() as opened:
            try:
                server = make_server(host, port, self._answer, _ServerOnIPv6 if ":" in host else _Server, _Handler)
            except (OSError, OverflowError, TypeError) as error:
                remedy = "pass an address of this machine and a free port from 0 to 65535; 0 takes one"
                raise InvalidArgument(what=f"cannot serve at {host!r}, port {port!r}: {error}", remedy=remedy) from None
            opened.callback(server.server_close)
            with contextlib.suppress(BackendUnavailable):
                client = prometheus("prometheus_client")
                opened.callback(Metrics(mw, registry).close)
                self._metrics = client.make_wsgi_app(client.REGISTRY if registry is None else registry)
            self.url = f"http://{printed(host, server.server_port)}"
            threading.Thread(target=server.serve_forever, name="multiworld-http", daemon=True).start()
            opened.callback(server.shutdown)
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Stop serving; a second time does nothing."""
        self._opened.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path, metrics = environ["PATH_INFO"], self._metrics
        if path == "/metrics" and metrics is not None:
            return metrics(environ, start)
        if path not in ("/ready", "/status"):
            start("404 Not Found", [("Content-Type", "text/plain")])
            return [b"here are /ready, /status, and /metrics with the extra `metrics`\n"]
        status = self._mw.status()
        answer = "200 OK" if status["ready"] or path == "/status" else "503 Service Unavailable"
        start(answer, [("Content-Type", "application/json")])
        return [json.dumps(status).encode()]
