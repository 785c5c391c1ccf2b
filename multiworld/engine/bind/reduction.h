// Reductions for Python.
#pragma once
#include "bind/stable_abi.h"

namespace multiworld {

// reduce(reduction, dtype code, address of the result, [address of each operand], elements): False if there is no such
// reduction here, and nothing is done.
PyObject* reduce_memory(PyObject*, PyObject* const* args, Py_ssize_t count);

}  // namespace multiworld
