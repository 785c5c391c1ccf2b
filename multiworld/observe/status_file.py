"""Status files for ``multiworld top``: each process writes its status into a file of a common folder.

A process does so only if its program asks for it. Add this to the program:

    from multiworld.observe.status_file import StatusFile

    async with MultiWorld() as mw:
        with StatusFile(mw, "/run/user/1000/my-service"):
            ...

Then run ``multiworld top /run/user/1000/my-service``. The processes may belong to many jobs. The program opens no port:
every user who may read the folder sees the status. This module needs neither typer nor rich.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from multiworld.worlds.status import ProcessStatus, WorldStatus

if TYPE_CHECKING:
    from multiworld.worlds.multi_world import MultiWorld

_SUFFIX = ".multiworld.json"


class StatusFile(contextlib.AbstractContextManager["StatusFile"]):
    """Writes the worlds and latest events of a ``MultiWorld`` into a folder for ``multiworld top``.

    It writes from a thread of its own and removes its file when it is closed. Use it as ``with StatusFile(mw, folder)``
    inside the block of the ``MultiWorld``, or call ``close``. A process that dies leaves its file; ``top`` shows it as
    silent.

    Args:
        folder: the argument of ``multiworld top``. It is made, for its owner only, if it does not exist.
        interval: seconds between two writes. An event is written at once.
    """

    def __init__(self, mw: MultiWorld, folder: str | os.PathLike[str], interval: float = 1.0) -> None:
        self._mw = mw
        self._interval = interval
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = Path(folder, f"{os.getpid()}-{id(self):x}{_SUFFIX}")
        self._wake = threading.Event()
        self._closed = False
        self._unsubscribe = mw.subscribe(lambda _: self._wake.set())
        self._write()  # the process is to be seen from here on, even if it dies at once
        self._thread = threading.Thread(target=self._run, name="mw-status", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and remove the file."""
        self._closed = True
        self._unsubscribe()
        self._wake.set()
        self._thread.join(timeout=5)
        self._path.unlink(missing_ok=True)

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(self._interval)
            self._wake.clear()
            self._write()

    def _write(self) -> None:
        status = {**self._mw.status(), "interval": self._interval}
        partial = self._path.with_suffix(".part")
        partial.write_text(json.dumps(status), encoding="utf-8")
        partial.replace(self._path)


def read_all(folder: Path) -> list[ProcessStatus]:
    """The statuses in ``folder``, by process number; what vanishes while we read, or is no status, is left out."""
    found = []
    for path in folder.glob(f"*{_SUFFIX}"):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            data = json.loads(path.read_text(encoding="utf-8"))
            worlds = tuple(WorldStatus(**world) for world in data.pop("worlds"))
            found.append(ProcessStatus(worlds=worlds, events=tuple(data.pop("events")), **data))
    return sorted(found, key=lambda status: status.pid)
