#include "bind/reduction.h"

#include "bind/binding.h"
#include "core/reduction.h"

namespace multiworld {

PyObject* reduce_memory(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!count_is(count, 5)) return nullptr;
  auto what = Reducing(PyLong_AsLong(args[0]));
  auto dtype = uint8_t(PyLong_AsLong(args[1]));
  char* to = static_cast<char*>(PyLong_AsVoidPtr(args[2]));
  std::vector<const char*> operands;
  for (Py_ssize_t i = 0, size = PyList_Size(args[3]); i < size; i++) {
    operands.push_back(static_cast<const char*>(PyLong_AsVoidPtr(PyList_GetItem(args[3], i))));
  }
  uint64_t elements = number(args[4]);
  if (PyErr_Occurred()) return nullptr;
  bool can = !operands.empty() && reduces(what, dtype);
  if (can) unlocked([&] { return reduce(what, dtype, to, operands, elements), 0; });
  return PyBool_FromLong(can);
}

}  // namespace multiworld
