"""The words of in-toto that all statements share."""

from __future__ import annotations

import msgspec

TYPE = "https://in-toto.io/Statement/v1"


class Resource(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file, package or commit, with its digests."""

    name: str
    uri: str = ""
    digest: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Subjects(msgspec.Struct, frozen=True):
    """The part of any statement that tells what it is about."""

    subject: tuple[Resource, ...]
