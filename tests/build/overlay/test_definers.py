"""Units that seem to define a symbol."""

from __future__ import annotations

from pathlib import Path

import pytest

from build.overlay.closure import Definers

_HOLDER = """namespace ns {
Holder::~Holder() {
  drop();
}
bool operator==(const Holder& a, const Holder& b) {
  return a.x == b.x;
}
bool Holder::operator!() const {
  return !x;
}
int Holder::size() const {
  return 1;
}
int LIMIT = 3;
}
extern "C" TORCH_API int take_holder(int x) { return x; }
"""
#: Has parts of the names only.
_OTHER = """int resize() { return 1; }
int LIMITS = 4;
Placeholder::~Placeholder() {}
"""


@pytest.mark.parametrize(
    "symbol",
    [
        "ns::Holder::~Holder()",
        "ns::operator==(ns::Holder const&, ns::Holder const&)",
        "ns::Holder::operator!() const",
        "ns::Holder::size() const",
        "ns::LIMIT",
        "take_holder",
    ],
)
def test_a_definer_is_found_by_the_whole_name(tmp_path: Path, symbol: str) -> None:
    (tmp_path / "c10" / "util").mkdir(parents=True)
    (tmp_path / "c10" / "util" / "Holder.cpp").write_text(_HOLDER)
    (tmp_path / "c10" / "util" / "Other.cpp").write_text(_OTHER)
    assert Definers(tmp_path).of(symbol) == ["c10/util/Holder.cpp"]
