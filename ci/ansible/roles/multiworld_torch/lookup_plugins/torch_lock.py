"""The lock of a host's release: a file here, or what `ci.cluster.lock` resolves for the host's kind."""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path
from typing import Any

from ansible.plugins.lookup import LookupBase

DOCUMENTATION = "name: torch_lock\nshort_description: The lock of a release of torch for a host\n"


class LookupModule(LookupBase):
    """The plugin."""

    def run(self, terms: list[Any], variables: Any = None, **_: Any) -> list[dict[str, Any]]:  # noqa: ARG002 - Ansible's
        """Return the text of the lock, the name of its release, and the wheels of this machine that it names.

        Args:
            terms: a file, or where that is empty a folder with a request; the first part of the name; and what the
                host is.
        """
        file, folder, name, host = terms
        if not file:
            sys.stdin = None  # Ansible has closed it; pip asks one that is there
            from ci.cluster.lock import lock

            file = lock(Path(folder), *(str(host[fact]) for fact in ("python", "machine", "glibc")))
        text = Path(file).read_text(encoding="utf-8")
        digest = hashlib.sha256("".join(re.findall(r'sha256 = "(\w+)"', text)).encode()).hexdigest()[:12]
        return [{"text": text, "release": f"{name}-{digest}", "wheels": re.findall(r'path = "([^"]+)"', text)}]
