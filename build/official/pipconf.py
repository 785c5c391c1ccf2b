"""What pip is configured with on this machine: indexes, certificates, proxy, local wheel folders.

Files are fetched with httpx rather than with `pip download`: it resumes a 770 MB download, reads single
members of a remote wheel by range. pip's own settings hold all the same.
"""

from __future__ import annotations

import configparser
import os
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pip._internal.models.index import PyPI

#: pip's own default, asked of pip itself: this project names no index.
DEFAULT_INDEX: str = PyPI.simple_url

#: The file of the whole machine.
SYSTEM_CONFIG = Path("/etc/pip.conf")


def _config_files() -> list[Path]:
    """Return pip's configuration files, least important first (pip: user guide, "Configuration")."""
    chosen = os.environ.get("PIP_CONFIG_FILE")
    if chosen == os.devnull:
        return []
    xdg = os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    home_config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    files = [Path(folder) / "pip" / "pip.conf" for folder in xdg.split(os.pathsep)]
    files += [SYSTEM_CONFIG, Path.home() / ".pip" / "pip.conf", home_config / "pip" / "pip.conf"]
    files.append(Path(sys.prefix) / "pip.conf")
    return [*files, Path(chosen)] if chosen else files


def setting(name: str) -> str | None:
    """Return one of pip's settings as pip would see it for `pip download`, None when unset.

    Args:
        name: its long name, e.g. `index-url`.
    """
    from_environment = os.environ.get("PIP_" + name.upper().replace("-", "_"))
    if from_environment:
        return from_environment
    parser = configparser.RawConfigParser()
    try:
        parser.read([str(path) for path in _config_files()], encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        return None  # pip itself complains about such a file; here the default serves
    for section in ("download", "global"):
        for key in (name, name.replace("-", "_")):
            if parser.has_option(section, key):
                return parser.get(section, key).strip() or None
    return None


def index_urls() -> tuple[str, ...]:
    """Return the simple indexes in the order they are asked: `index-url`, then every `extra-index-url`."""
    if (setting("no-index") or "").lower() in ("1", "true", "yes", "on"):
        return ()
    urls = [setting("index-url") or DEFAULT_INDEX, *(setting("extra-index-url") or "").split()]
    return tuple(url.rstrip("/") for url in urls)


def local_path(location: str) -> Path | None:
    """Return the folder or file a `file:` URL or a plain path names, None for other URLs."""
    parts = urlsplit(location)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme else Path(location)


def wheel_folders() -> tuple[Path, ...]:
    """Return the local folders of `find-links`: an offline wheelhouse serves, its digests checked."""
    paths = [local_path(link) for link in (setting("find-links") or "").split()]
    return tuple(path for path in paths if path is not None and path.is_dir())
