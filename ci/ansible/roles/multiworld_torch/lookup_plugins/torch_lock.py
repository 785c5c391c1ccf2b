"""The file with the lock of a host's release, which `ci.cluster.lock` resolves for the host's kind."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.plugins.lookup import LookupBase

DOCUMENTATION = "name: torch_lock\nshort_description: The lock of a release of torch for a host\n"


class LookupModule(LookupBase):
    """The plugin. Its terms are the folder with a request, and what the host is."""

    def run(self, terms: list[Any], variables: Any = None, **_: Any) -> list[str]:  # noqa: ARG002 - Ansible's
        sys.stdin = None  # Ansible has closed it; pip asks one that is there
        from ci.cluster.lock import lock

        folder, host = terms
        return [str(lock(Path(folder), *(str(host.get(fact)) for fact in ("python", "machine", "glibc"))))]
