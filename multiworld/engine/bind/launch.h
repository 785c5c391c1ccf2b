// The launches of communicators, as Python sees them.
#pragma once
#include "bind/stable_abi.h"

namespace multiworld {

// Add `Launcher` and `LAUNCH_FUNCTIONS`; false with an error set.
bool add_launcher(PyObject* module);

}  // namespace multiworld
