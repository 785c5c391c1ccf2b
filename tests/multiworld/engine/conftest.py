"""The compiled engine of the package."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from engine.pairs import Two


@pytest.fixture(scope="session")
def native() -> ModuleType:
    """The module of the binding."""
    import torch

    from multiworld.engine import library

    module = library.module()
    see_plain(torch.zeros(1))
    return module  # type: ignore[no-any-return]


@pytest.fixture
def two(native: ModuleType) -> Iterator[Two]:
    """Two engines that are joined."""
    from engine.pairs import Two

    made = Two(native)
    yield made
    made.a.end(False)
    made.b.end(False)


@pytest.fixture
def bare(native: ModuleType) -> Iterator[Two]:
    """An engine, and a bare socket in the place of its peer."""
    from engine.pairs import Two

    made = Two(native, bare=True)
    yield made
    made.a.end(False)
    made.peer.close()


def see_plain(tensor: Any) -> None:
    """Let Python's checks see a plain tensor, which notes its kind."""
    from multiworld.tensors.checks import check_tensor

    member = SimpleNamespace(on_device=False)
    check_tensor(SimpleNamespace(device=tensor.device, member=member), "recv", tensor)  # type: ignore[arg-type]
