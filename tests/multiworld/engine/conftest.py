"""The compiled engine of the package."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


@pytest.fixture(scope="session")
def native() -> ModuleType:
    """The module of the binding."""
    import torch

    from multiworld.engine import library

    module = library.module()
    see_plain(torch.zeros(1))
    return module  # type: ignore[no-any-return]


def see_plain(tensor: Any) -> None:
    """Let Python's checks see a plain tensor, which notes its kind."""
    from multiworld.tensors.checks import check_tensor

    member = SimpleNamespace(on_device=False)
    check_tensor(SimpleNamespace(device=tensor.device, member=member), "recv", tensor)  # type: ignore[arg-type]
