"""The lock for one kind of host: the address and the hash of each wheel. `ci/ansible` calls this."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import msgspec
from filelock import FileLock
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from build.bootstrap import uv_settings
from build.errors import UsageError
from build.process import uv_run
from build.wheelhouse import trust
from build.wheelhouse.signer import Signer

#: The versions of glibc for which uv knows a platform.
_GLIBC = (17, 28, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40)
#: The variables by which uv would ask other places, too.
_PLACES = ("UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_NO_CONFIG")
#: The request, in the folder of the locks.
REQUEST = "request.json"
_KIND = re.compile(r"Python (3\.\d{1,2}), (\w{1,20}), glibc 2\.(\d{1,2})")


class Request(msgspec.Struct, frozen=True):
    """The request of the administrator.

    Attributes:
        specs: requirements, e.g. `torch==2.6.0+cu124.mw5`.
        wheels: a folder of wheels, which are sent to the hosts; empty for none.
        indexes: package indexes, the wheelhouse first.
        signer: must have signed the list of the wheelhouse.
    """

    specs: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    wheels: str = ""
    signer: Signer = Signer()

    def named(self) -> str:
        """Return `NAME-VERSION` of the first requirement.

        Raises:
            UsageError: something can be seen to be wrong before any host is asked.
        """
        try:
            first, *_ = [Requirement(spec) for spec in self.specs]
        except ValueError as error:
            raise UsageError(f"this cannot be installed: {error}", remedy="write it as NAME==VERSION") from None
        if self.wheels and {path.is_file() for path in Path(self.wheels).glob("*.whl")} != {True}:
            what = f"{self.wheels} has no wheels, or something else that is called so"
            raise UsageError(what, remedy="name a folder whose *.whl are files")
        if self.signer.name and not self.indexes:
            raise UsageError("a signer is that of a wheelhouse", remedy="name the wheelhouse as the first --index URL")
        if self.signer.name:
            trust.trusted(self.indexes[0], self.signer)
        pinned = [item.version for item in first.specifier if item.operator == "=="]
        return "-".join([canonicalize_name(first.name), *pinned])

    def config(self) -> dict[str, object]:
        """Return uv's configuration, by which a name that one place has is never taken from a later one."""
        places = [{"url": Path(self.wheels).as_uri(), "format": "flat"}] if self.wheels else []
        places += [{"url": url} for url in self.indexes]
        default = [place | {"default": True} for place in places[-1:]]
        return {"index": places[:-1] + default, "index-strategy": "first-index"} if places else {}


def lock(folder: str, kind: str) -> Path:
    """Return the lock for hosts of a kind, made once; a file of this machine is named by its path, and sent.

    Args:
        folder: has the request, and gets the lock.
        kind: what the module tells of a host, e.g. `Python 3.11, x86_64, glibc 2.36`.
    """
    told = _KIND.fullmatch(kind)
    if told is None or int(told[3]) < _GLIBC[0]:
        raise UsageError(f"torch is not for this host: {kind!r}", remedy="name another Python, or upgrade the host")
    python, platform = told[1], f"{told[2]}-manylinux_2_{max(known for known in _GLIBC if known <= int(told[3]))}"
    file = Path(folder, f"{python}-{platform}.toml")
    with FileLock(f"{file}.wait"):
        if not file.exists():
            asked = msgspec.json.decode(Path(folder, REQUEST).read_bytes(), type=Request)
            text = _compiled(asked, python, platform, file.with_suffix(".config"))
            if asked.signer.name:
                trust.trusted(asked.indexes[0], asked.signer)[0].check(asked.indexes[0], asked.signer, _pinned(text))
            by_path = re.sub(r'url = "file://([^"]+)"', lambda found: f'path = "{unquote(found[1])}"', text)
            file.write_text(by_path, encoding="utf-8")
    return file


def _pinned(text: str) -> dict[str, list[str]]:
    """Return the SHA-256 of the files of each package."""
    packages = msgspec.toml.decode(text)["packages"]
    files = {item["name"]: item.get("wheels") or [item["archive"]] for item in packages}
    return {name: [file["hashes"]["sha256"] for file in of_name] for name, of_name in files.items()}


def _compiled(asked: Request, python: str, platform: str, config: Path) -> str:
    options = ["--quiet", "--format", "pylock.toml", "--no-header", "--no-annotate", "--only-binary", ":all:"]
    options += ["--python-version", python, "--python-platform", platform, "--no-python-downloads"]
    config.write_bytes(msgspec.toml.encode(asked.config()))
    env, without = ({"UV_CONFIG_FILE": str(config)}, _PLACES) if asked.config() else (uv_settings(), ())
    what = f"the lock of {', '.join(asked.specs)} for Python {python} on {platform}"
    remedy = "check name and version, and what --index and --wheels offer"
    given, command = "\n".join(asked.specs).encode(), ("pip", "compile", "-", *options)
    return uv_run(what, *command, remedy=remedy, stdin=given, env=env, without=without).stdout.decode()
