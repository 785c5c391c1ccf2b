"""Loads the patched units of this package into the torch build that they were made for, and only into that one.

A `.pth` file imports this module when Python starts, which puts a finder in front of `sys.meta_path` (microseconds).
Before `torch._C` is imported, the finder loads the overlay, whose dependencies are torch's own libraries: the dynamic
loader resolves them with the overlay first. The process gets no global symbols, and torch's files do not change.

Set `MULTIWORLD_TORCH_OVERLAY=0` to leave torch as it is.
"""

from __future__ import annotations

import sys

_state = _WAITING = "not loaded: torch has not been imported"


class _Finder:
    """Never finds a module: it sees each import, and acts on the first of `torch._C`.

    It stays in `sys.meta_path`: Python iterates over that list while it acts, and would skip the next finder.
    """

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        """Load the overlay when `name` is `torch._C`; always leave the search to the other finders."""
        global _state
        if name == "torch._C" and _state is _WAITING:
            _state = "not loaded: loading it failed"
            from ._load import load

            _state = load(next(iter(path or ()), ""))  # type: ignore[call-overload]


def state() -> str:
    """Return the state of the overlay in this process: `loaded`, or `not loaded: ` and the reason."""
    return _state


def install() -> None:
    """Put the finder in place, once; called by the `.pth` file."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
