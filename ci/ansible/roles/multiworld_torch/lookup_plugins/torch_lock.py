"""The lock of a host's release: a file here, or what `ci.cluster.lock` resolves once for each kind of host."""

from __future__ import annotations

import fcntl
import hashlib
import re
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase

DOCUMENTATION = "name: torch_lock\nshort_description: The lock of a release of torch for a host\n"


class LookupModule(LookupBase):
    """The plugin."""

    def run(self, terms: list[Any], variables: Any = None, **_: Any) -> list[dict[str, Any]]:  # noqa: ARG002 - Ansible's
        """Return the text of the lock, the name of its release, and the wheels of this machine that it names.

        Args:
            terms: a file, or where that is empty a request and a folder for what is resolved; the first part of the
                name; and what the host is.
        """
        file, request, folder, name, host = terms
        text = Path(file).read_text(encoding="utf-8") if file else _resolved(request, Path(folder), host)
        digest = hashlib.sha256("".join(re.findall(r'sha256 = "(\w+)"', text)).encode()).hexdigest()[:12]
        return [{"text": text, "release": f"{name}-{digest}", "wheels": re.findall(r'path = "([^"]+)"', text)}]


def _resolved(request: str, folder: Path, host: dict[str, str]) -> str:
    kind = [str(host[fact]) for fact in ("python", "machine", "glibc")]
    file = folder / f"{hashlib.sha256(repr(kind).encode()).hexdigest()}.toml"
    with file.with_suffix(".wait").open("w") as wait:
        fcntl.flock(wait, fcntl.LOCK_EX)
        if not file.exists():
            from build.errors import ToolError
            from ci.cluster.lock import lock

            try:
                file.write_text(lock(request.encode(), *kind), encoding="utf-8")
            except ToolError as error:
                raise AnsibleError(str(error)) from None
    return file.read_text(encoding="utf-8")
