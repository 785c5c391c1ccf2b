"""Logs as JSON lines with world and generation, for programs that ask for it:

    from multiworld.observe.json_log import JsonLog

    with MultiWorld() as mw, JsonLog(mw, sys.stderr):
        ...

Each event is a line, and so is each record of the package's own loggers.
"""

from __future__ import annotations

import json
import logging
from contextlib import AbstractContextManager
from dataclasses import fields
from typing import TYPE_CHECKING, TextIO

from multiworld.errors import MultiWorldError
from multiworld.events import AttemptFailed, DeviceLost, Event, OwnStall, PeerSuspected, WorldBroken, WorldGivenUp

if TYPE_CHECKING:
    from multiworld.worlds.multi_world import MultiWorld

#: what somebody may have to look at
WARNINGS = AttemptFailed, DeviceLost, OwnStall, PeerSuspected, WorldBroken, WorldGivenUp


class JsonLog(logging.StreamHandler, AbstractContextManager["JsonLog"]):  # type: ignore[type-arg]  # which Python 3.10 does not take
    """Writes events and log records to ``stream`` until ``close``, one JSON object a line.

    Fields: ``time`` (seconds since the epoch), ``level``, ``logger``, ``message``; of an event also ``event``,
    ``world``, ``generation``, ``rank`` and what it has itself. Records of the package's loggers go here, and as ever to
    the handlers of the program.
    """

    def __init__(self, mw: MultiWorld, stream: TextIO) -> None:
        super().__init__(stream)
        self._unsubscribe = mw.subscribe(self._event)
        logging.getLogger("multiworld").addHandler(self)

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON in one line."""
        told = {"time": record.created, "level": record.levelname, "logger": record.name}
        trace = {"trace": logging.Formatter().formatException(record.exc_info)} if record.exc_info else {}
        whole = {**told, "message": record.getMessage(), **getattr(record, "fields", {}), **trace}
        return json.dumps(whole, default=str)

    def close(self) -> None:
        """Write no more; a second time does nothing."""
        self._unsubscribe()
        logging.getLogger("multiworld").removeHandler(self)
        super().close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _event(self, event: Event) -> None:
        told = {"event": type(event).__name__, **{f.name: _plain(getattr(event, f.name)) for f in fields(event)}}
        level = logging.WARNING if isinstance(event, WARNINGS) else logging.INFO
        message = told.get("failure", told["event"])
        record = logging.LogRecord("multiworld.events", level, "", 0, "%s", (message,), None)
        record.created, record.__dict__["fields"] = event.at, told
        self.handle(record)


def _plain(value: object) -> object:
    return f"{type(value).__name__}: {value.what}" if isinstance(value, MultiWorldError) else value
