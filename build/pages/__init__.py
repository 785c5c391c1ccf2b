"""HTML pages from jinja2 templates: one file each, which loads nothing; every value in it is escaped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
from rich import filesize

from build.console import counted


def render(template: str, **values: Any) -> str:  # noqa: ANN401 - a template shows any object
    """Return the page of a template beside this module, all in one file."""
    return _ENVIRONMENT.get_template(template).render(values)


def _asset(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters |= {"size": filesize.decimal, "counted": counted}
_ENVIRONMENT.globals |= {"asset": _asset}
