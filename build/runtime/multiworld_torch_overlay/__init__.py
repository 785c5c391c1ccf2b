"""Loads the patched units of this package into the torch build they were made for, and into no other.

A `.pth` file imports this module when Python starts. All it does then is to put a finder in front of
`sys.meta_path` (microseconds); when `torch._C` is about to be imported, the finder loads the overlay, whose
dependencies are torch's own libraries: the dynamic loader resolves them with the overlay first. Nothing becomes
global to the process, no file of torch changes.

Set `MULTIWORLD_TORCH_OVERLAY=0` to leave torch as it is.
"""

from __future__ import annotations

import sys

_state = _WAITING = "not loaded: torch has not been imported"


class _Finder:
    """Finds nothing, ever: it is told of each import, and acts on the first of `torch._C`.

    It stays in `sys.meta_path`: that list is being walked while it acts, and taking it out would hide the next finder.
    """

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        """Load the overlay when `name` is `torch._C`; always leave the search to the other finders."""
        global _state
        if name == "torch._C" and _state is _WAITING:
            _state = "not loaded: loading it failed"
            from ._load import load

            _state = load(next(iter(path or ()), ""))  # type: ignore[call-overload]


def state() -> str:
    """Return what became of the overlay in this process: `loaded`, or `not loaded: ` and the reason."""
    return _state


def install() -> None:
    """Put the finder in place, once; called by the `.pth` file."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
