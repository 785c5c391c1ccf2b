// The launches of communicators, as Python sees them.
#pragma once
#include <memory>

#include "bind/stable_abi.h"
#include "launch/launcher.h"

namespace multiworld {

// Add `Launcher` and `LAUNCH_FUNCTIONS`; false with an error set.
bool add_launcher(PyObject* module);

// The launcher of a Python object; null with an error set if it is none.
std::shared_ptr<Launcher> launcher_in(PyObject* object);

}  // namespace multiworld
