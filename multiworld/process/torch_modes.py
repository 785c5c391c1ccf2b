"""PyTorch's modes and transforms in the calling thread: ours is done outside of them.

Under ``FakeTensorMode`` a buffer that is made has no memory, under ``torch.device("meta")`` neither; under
``FlopCounterMode`` our copies would be counted; what is made in inference mode may not be changed outside of it. What
was asked for is done as if there were no such mode. Inside a transform of ``torch.func`` an operation has no meaning:
it would be done once for a whole batch.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from multiworld.engine.library import know_watchers

_functorch: Final[Any] = getattr(torch._C, "_functorch", None)
_dispatch_modes: Final[Callable[[], int]] = torch._C._len_torch_dispatch_stack
_function_modes: Final[Callable[[], int]] = torch._C._len_torch_function_stack
_inference: Final[Callable[[], bool]] = torch.is_inference_mode_enabled
#: the innermost transform of torch.func that the calling thread is inside of; None outside of all
transform: Final[Callable[[], Any]] = getattr(_functorch, "peek_interpreter_stack", lambda: None)
# Where one of these says something, compiled code leaves the call to Python.
know_watchers((_dispatch_modes, _function_modes, _inference, transform))


def torch_modes_active() -> bool:
    """Return whether a mode of the calling thread would see or change what is done here."""
    return bool(_dispatch_modes() or _function_modes() or _inference())


@contextlib.contextmanager
def without_torch_modes() -> Iterator[None]:
    """Do the enclosed outside of all modes of the calling thread. Nothing may be awaited in it."""
    if not torch_modes_active():  # torch would load modules, for which there may be no descriptor
        yield
        return
    modes = importlib.import_module("torch.utils._python_dispatch")  # loaded long since, where a mode is on
    with torch._C.DisableTorchFunction(), modes._disable_current_modes(), torch.inference_mode(False):
        yield
