// The binding: `multiworld._engine`, on the stable ABI of CPython 3.10, so that one file serves every later version.
//
// Tensors are looked at by their attributes; nothing of libtorch is used. What is not plain - contiguous, strided, dense, on the
// CPU, of a dtype that has a code - is Python's to refuse or to prepare. The lock of the interpreter is given up for all that
// may take time.
#include <cerrno>
#include <ctime>
#include <map>
#include <stdexcept>
#include <system_error>

#include "mover/engine.h"
#include "stable_abi.h"

using namespace multiworld;

namespace {

PyObject *tensor_type, *parameter_type, *codes, *strided;
enum Name { n_dtype, n_layout, n_is_cpu, n_is_contiguous, n_is_conj, n_is_neg, n_requires_grad, n_data_ptr, n_nbytes, n_count };
PyObject* names[n_count];

struct EngineObject {
  ObjectHead head;
  Engine* engine;
};

PyObject* none() {
  Py_IncRef(&_Py_NoneStruct);
  return &_Py_NoneStruct;
}

// The type of an object, borrowed of it.
PyObject* type_of(PyObject* object) {
  return reinterpret_cast<PyObject*>(reinterpret_cast<ObjectHead*>(object)->type);
}

// The engine; null with an error set in a forked child.
Engine* engine_of(PyObject* self) {
  Engine* engine = reinterpret_cast<EngineObject*>(self)->engine;
  if (!engine->forked()) return engine;
  PyErr_Format(PyExc_RuntimeError, "used in a forked child of the process that joined");
  return nullptr;
}

// Without the interpreter's lock.
template <class F>
auto unlocked(F function) {
  PyThreadState* state = PyEval_SaveThread();
  struct Restore {
    PyThreadState* state;
    ~Restore() { PyEval_RestoreThread(state); }
  } restore{state};
  return function();
}

bool count_is(Py_ssize_t count, Py_ssize_t wanted) {
  if (count != wanted) PyErr_Format(PyExc_TypeError, "%zd arguments, %zd expected", count, wanted);
  return count == wanted;
}

uint64_t number(PyObject* object) { return PyLong_AsUnsignedLongLong(object); }

// Whether an attribute, or what a method returns, is True; -1 on error.
int truth(PyObject* found) {
  if (!found) return -1;
  int is = found == &_Py_TrueStruct;
  Py_DecRef(found);
  return is;
}

struct Plain {
  uint8_t code = 0;
  char* data = nullptr;
  uint64_t nbytes = 0;
};

// Whether a tensor is plain: 1, 0, or -1 on error. One that is written must not require a gradient.
int plain(PyObject* tensor, bool written, Plain& found) {
  PyObject* type = type_of(tensor);
  if (type != tensor_type && type != parameter_type) return 0;
  PyObject* dtype = PyObject_GetAttr(tensor, names[n_dtype]);
  if (!dtype) return -1;
  PyObject* code = PyDict_GetItemWithError(codes, dtype);
  Py_DecRef(dtype);
  if (!code) return PyErr_Occurred() ? -1 : 0;
  found.code = uint8_t(PyLong_AsLong(code));
  PyObject* layout = PyObject_GetAttr(tensor, names[n_layout]);
  if (!layout) return -1;
  Py_DecRef(layout);
  if (layout != strided) return 0;
  int is = truth(PyObject_GetAttr(tensor, names[n_is_cpu]));
  if (is == 1) is = truth(PyObject_CallMethodObjArgs(tensor, names[n_is_contiguous], nullptr));
  for (Name no : {n_is_conj, n_is_neg}) {
    if (is != 1) return is;
    is = truth(PyObject_CallMethodObjArgs(tensor, names[no], nullptr));
    if (is >= 0) is = !is;
  }
  if (is == 1 && written) {
    is = truth(PyObject_GetAttr(tensor, names[n_requires_grad]));
    if (is >= 0) is = !is;
  }
  if (is != 1) return is;
  PyObject* nbytes = PyObject_GetAttr(tensor, names[n_nbytes]);
  if (!nbytes) return -1;
  found.nbytes = number(nbytes);
  Py_DecRef(nbytes);
  PyObject* data = PyObject_CallMethodObjArgs(tensor, names[n_data_ptr], nullptr);
  if (!data) return -1;
  found.data = static_cast<char*>(PyLong_AsVoidPtr(data));
  Py_DecRef(data);
  if (PyErr_Occurred()) return -1;
  return found.data || !found.nbytes;  // one that is fake, or has no storage, has no memory
}

int64_t deadline(PyObject* seconds) {
  double patience = PyFloat_AsDouble(seconds);
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  int64_t began = now.tv_sec * 1'000'000'000 + now.tv_nsec;
  return patience > 9e9 ? INT64_MAX : began + int64_t(patience * 1e9);
}

// Let signal handlers run. False with their error set if one raised, and then the operation is withdrawn.
bool heeded(Engine& engine, uint64_t id) {
  if (PyErr_CheckSignals() == 0) return true;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  unlocked([&] { return engine.withdraw(id), 0; });
  PyErr_Restore(type, value, trace);
  return false;
}

// Wait until it is done, or it is too late; false with an error set if a signal handler raised.
bool waited(Engine& engine, uint64_t id, int64_t until) {
  for (bool interrupted = true; interrupted;) {
    interrupted = false;
    unlocked([&] { return engine.wait(id, until, &interrupted); });
    if (interrupted && !heeded(engine, id)) return false;
  }
  return true;
}

// (outcome, peer, mode, dtype, nbytes): what it is, of whom, and what they have instead.
PyObject* outcome_of(Engine& engine, uint64_t id) {
  Result result = engine.take(id);
  return Py_BuildValue("(iiiiK)", int(result.outcome), result.peer, int(result.theirs.mode), int(result.theirs.dtype),
                       static_cast<unsigned long long>(result.theirs.nbytes));
}

// The same for one that its caller has no number of: it is withdrawn if it is not done.
PyObject* outcome_or_withdrawn(Engine& engine, uint64_t id) {
  PyObject* outcome = outcome_of(engine, id);
  unlocked([&] { return engine.withdraw(id), 0; });
  return outcome;
}

PyObject* setup(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!count_is(count, 4)) return nullptr;
  const char* texts[n_count] = {"dtype",   "layout", "is_cpu",        "is_contiguous", "is_conj",
                                "is_neg", "requires_grad", "data_ptr", "nbytes"};
  for (int i = 0; i < n_count; i++) names[i] = PyUnicode_InternFromString(texts[i]);
  for (int i = 0; i < 4; i++) Py_IncRef(args[i]);
  tensor_type = args[0], parameter_type = args[1], codes = args[2], strided = args[3];
  return none();
}

// send(peer, key, tensor, seconds), recv(...): None if the tensor is not plain, else the outcome. One that is not done by then is
// withdrawn.
template <bool receives>
PyObject* whole(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Engine* engine = engine_of(self);
  if (!engine || !count_is(count, 4)) return nullptr;
  int peer = int(PyLong_AsLong(args[0]));
  uint64_t key = number(args[1]);
  int64_t until = deadline(args[3]);
  Plain tensor;
  int is = PyErr_Occurred() ? -1 : plain(args[2], receives, tensor);
  if (is < 0) return nullptr;
  if (!is) return none();
  Signature signature{mode_fixed, tensor.code, tensor.nbytes};
  uint64_t id = 0;
  bool done = unlocked([&] {
    id = receives ? engine->receive(peer, key, signature, tensor.data, true)
                  : engine->send(peer, key, signature, {tensor.data, tensor.nbytes}, {}, true);
    bool interrupted = false;
    return engine->wait(id, until, &interrupted) || !interrupted;
  });
  if (!done && !heeded(*engine, id)) return nullptr;
  if (!done && !waited(*engine, id, until)) return nullptr;
  return outcome_or_withdrawn(*engine, id);
}

// start_send(peer, key, tensor), start_recv(...): None if the tensor is not plain, else the number of the operation.
template <bool receives>
PyObject* start(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Engine* engine = engine_of(self);
  if (!engine || !count_is(count, 3)) return nullptr;
  int peer = int(PyLong_AsLong(args[0]));
  uint64_t key = number(args[1]);
  Plain tensor;
  int is = PyErr_Occurred() ? -1 : plain(args[2], receives, tensor);
  if (is < 0) return nullptr;
  if (!is) return none();
  Signature signature{mode_fixed, tensor.code, tensor.nbytes};
  uint64_t id = unlocked([&] {
    return receives ? engine->receive(peer, key, signature, tensor.data, true)
                    : engine->send(peer, key, signature, {tensor.data, tensor.nbytes}, {}, true);
  });
  return PyLong_FromUnsignedLongLong(id);
}

PyObject* wait_for(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Engine* engine = engine_of(self);
  if (!engine || !count_is(count, 2)) return nullptr;
  uint64_t id = number(args[0]);
  int64_t until = deadline(args[1]);
  if (PyErr_Occurred() || !waited(*engine, id, until)) return nullptr;
  return outcome_of(*engine, id);
}

PyObject* outcome(PyObject* self, PyObject* id) {
  Engine* engine = engine_of(self);
  if (!engine) return nullptr;
  uint64_t wanted = number(id);
  return PyErr_Occurred() ? nullptr : outcome_of(*engine, wanted);
}

PyObject* withdraw(PyObject* self, PyObject* id) {
  Engine* engine = engine_of(self);
  if (!engine) return nullptr;
  uint64_t wanted = number(id);
  if (PyErr_Occurred()) return nullptr;
  unlocked([&] { return engine->withdraw(wanted), 0; });
  return none();
}

PyObject* notify(PyObject* self, PyObject* id) {
  Engine* engine = engine_of(self);
  if (!engine) return nullptr;
  uint64_t wanted = number(id);
  if (PyErr_Occurred()) return nullptr;
  return PyBool_FromLong(unlocked([&] { return engine->notify(wanted); }));
}

PyObject* progress(PyObject* self, PyObject*) {
  Engine* engine = engine_of(self);
  if (!engine) return nullptr;
  std::vector<uint64_t> done = unlocked([&] { return engine->progress(); });
  PyObject* list = PyList_New(Py_ssize_t(done.size()));
  for (size_t i = 0; list && i < done.size(); i++) {
    PyList_SetItem(list, Py_ssize_t(i), PyLong_FromUnsignedLongLong(done[i]));
  }
  return list;
}

PyObject* events(PyObject* self, PyObject*) {
  Engine* engine = engine_of(self);
  if (!engine) return nullptr;
  std::vector<Event> found = engine->events();
  PyObject* list = PyList_New(Py_ssize_t(found.size()));
  for (size_t i = 0; list && i < found.size(); i++) {
    Event& event = found[i];
    PyObject* entry = Py_BuildValue("(iiiKN)", int(event.type), event.peer, event.number,
                                    static_cast<unsigned long long>(event.id),
                                    PyBytes_FromStringAndSize(event.text.data(), Py_ssize_t(event.text.size())));
    if (!entry) return Py_DecRef(list), nullptr;
    PyList_SetItem(list, Py_ssize_t(i), entry);
  }
  return list;
}

PyObject* flush(PyObject* self, PyObject*) {
  Engine* engine = engine_of(self);
  if (!engine) return nullptr;
  return PyBool_FromLong(unlocked([&] { return engine->flush(); }));
}

PyObject* end(PyObject* self, PyObject* orderly) {
  Engine* engine = engine_of(self);
  if (!engine) return nullptr;
  int is = PyObject_IsTrue(orderly);
  if (is < 0) return nullptr;
  unlocked([&] { return engine->end(is), 0; });
  return none();
}

template <int (Engine::*descriptor)() const>
PyObject* fileno(PyObject* self, PyObject*) {
  Engine* engine = engine_of(self);
  return engine ? PyLong_FromLong((engine->*descriptor)()) : nullptr;
}

// Engine(rank, {peer: descriptor}, max_message_bytes)
PyObject* engine_new(PyTypeObject* type, PyObject* args, PyObject*) {
  int rank;
  PyObject* lanes;
  unsigned long long longest;
  if (!PyArg_ParseTuple(args, "iO!K", &rank, &PyDict_Type, &lanes, &longest)) return nullptr;
  std::map<int, int> descriptors;
  PyObject *peer, *descriptor;
  for (Py_ssize_t at = 0; PyDict_Next(lanes, &at, &peer, &descriptor);) {
    descriptors[int(PyLong_AsLong(peer))] = int(PyLong_AsLong(descriptor));
  }
  if (PyErr_Occurred()) return nullptr;
  auto alloc = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  PyObject* self = alloc(type, 0);
  if (!self) return nullptr;
  try {
    reinterpret_cast<EngineObject*>(self)->engine = new Engine(rank, descriptors, longest);
  } catch (const std::system_error& error) {
    Py_DecRef(self);
    errno = error.code().value();
    return PyErr_SetFromErrno(PyExc_OSError);
  }
  return self;
}

void engine_free(PyObject* self) {
  Engine* engine = reinterpret_cast<EngineObject*>(self)->engine;
  if (!engine || !engine->forked()) delete engine;  // in a forked child it may be half changed
  PyObject* type = type_of(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(reinterpret_cast<PyTypeObject*>(type), Py_tp_free))(self);
  Py_DecRef(type);
}

// A function whose C++ exceptions become Python's.
template <auto function>
struct Guarded;
template <class... Args, PyObject* (*function)(Args...)>
struct Guarded<function> {
  static PyObject* call(Args... args) {
    try {
      return function(args...);
    } catch (const std::bad_alloc&) {
      return PyErr_NoMemory();
    } catch (const std::out_of_range&) {
      return PyErr_Format(PyExc_ValueError, "there is no such peer");
    } catch (const std::exception& error) {
      return PyErr_Format(PyExc_RuntimeError, "%s", error.what());
    }
  }
};

#define FAST(name, function) \
  {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&Guarded<function>::call)), METH_FASTCALL, nullptr}
#define PLAIN(name, function, flags) {name, &Guarded<function>::call, flags, nullptr}
PyMethodDef engine_methods[] = {
    FAST("send", whole<false>),
    FAST("recv", whole<true>),
    FAST("start_send", start<false>),
    FAST("start_recv", start<true>),
    FAST("wait", wait_for),
    PLAIN("outcome", outcome, METH_O),
    PLAIN("withdraw", withdraw, METH_O),
    PLAIN("notify", notify, METH_O),
    PLAIN("progress", progress, METH_NOARGS),
    PLAIN("events", events, METH_NOARGS),
    PLAIN("flush", flush, METH_NOARGS),
    PLAIN("end", end, METH_O),
    {"readable", fileno<&Engine::readable>, METH_NOARGS, nullptr},
    {"completed", fileno<&Engine::completed>, METH_NOARGS, nullptr},
    {"eventful", fileno<&Engine::eventful>, METH_NOARGS, nullptr},
    {},
};
PyType_Slot engine_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(engine_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(engine_free)},
    {Py_tp_methods, engine_methods},
    {0, nullptr},
};
PyType_Spec engine_spec = {"multiworld._engine.Engine", sizeof(EngineObject), 0, 0, engine_slots};

PyMethodDef functions[] = {FAST("setup", setup), {}};
PyModuleDef module = {
    {{1, nullptr}, nullptr, 0, nullptr}, "multiworld._engine", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr,
};

}  // namespace

extern "C" __attribute__((visibility("default"))) PyObject* PyInit__engine() {
  PyObject* made = PyModule_Create2(&module, abi_version);
  PyObject* type = made ? PyType_FromSpec(&engine_spec) : nullptr;
  if (!type || PyModule_AddObject(made, "Engine", type) < 0) return nullptr;
  return made;
}
