"""Times that the suite holds the package to.

They tell "noticed" from "waited for some deadline", which is a minute where a test sets none, on a machine with a load
of twenty, too. The figures that are promised are ``multiworld bench``'s to judge.
"""

from __future__ import annotations

from typing import Final

#: a peer's process is gone: its sockets end at once
GONE_SECONDS: Final = 20.0
#: a peer is silent, with the default heartbeat (lost after 0.8 s)
SILENT_SECONDS: Final = 20.0
#: joining or rejoining where everybody comes
JOIN_SECONDS: Final = 60.0
#: a caller's own mistake, or its own wish to stop: told at once
AT_ONCE_SECONDS: Final = 20.0
#: what may come on top of a deadline that was given
GRACE_SECONDS: Final = 20.0
#: an answer that needs no fault to be noticed
ANSWER_SECONDS: Final = 60.0
