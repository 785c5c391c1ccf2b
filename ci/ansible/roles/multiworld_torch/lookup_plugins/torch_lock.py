"""The file with the lock of a host's release, which `ci.cluster.lock` resolves for the host's kind."""

from __future__ import annotations

import sys

from ansible.plugins.lookup import LookupBase


class LookupModule(LookupBase):
    """The plugin. Its terms are the folder with a request, and the kind of the host."""

    def run(self, terms: list[str], variables: object = None, **_: object) -> list[str]:  # noqa: ARG002 - Ansible's
        sys.stdin = None  # Ansible has closed it; pip asks one that is there
        from ci.cluster.lock import lock

        return [str(lock(*terms))]
