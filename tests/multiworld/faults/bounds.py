"""Times that the suite holds the package to; generous for a loaded machine, the figures themselves are ``bench``'s."""

from __future__ import annotations

from typing import Final

#: a peer's process is gone: its sockets end at once
GONE_SECONDS: Final = 1.0
#: a peer is silent, with the default heartbeat (lost after 0.8 s)
SILENT_SECONDS: Final = 1.7
#: joining or rejoining where everybody comes
JOIN_SECONDS: Final = 15.0
#: an answer that needs no fault to be noticed
ANSWER_SECONDS: Final = 15.0
