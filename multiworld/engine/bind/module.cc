// The binding: `multiworld._engine`, on the stable ABI of CPython 3.10, so that one file serves every later version.
//
// Tensors are looked at as Python's own checks do; nothing of libtorch is used. What is not plain - of a kind that these
// checks have seen to be plain, contiguous, of a dtype that has a code, in a storage that is there - is Python's to refuse or
// to prepare. The lock of the interpreter is given up for all that may take time.
#include <cstring>
#include <ctime>
#include <map>

#include "bind/binding.h"
#include "bind/launch.h"
#include "bind/reduction.h"
#include "heartbeats.h"
#include "mover/engine.h"

using namespace multiworld;

namespace {

// What `setup` was given, see there.
PyObject *plain_types, *kind_of, *plain_kinds, *codes;
// What `setup_watchers` was given.
PyObject* watchers;
enum Name {
  n_dtype, n_is_contiguous, n_data_ptr, n_nbytes, n_untyped_storage, n_resizable, n_callbacks, n_remove, n_set_result, n_run, n_count
};
PyObject* names[n_count];

struct EngineObject {
  ObjectHead head;
  std::shared_ptr<Engine>* engine;
};

// The type of an object, borrowed of it.
PyObject* type_of(PyObject* object) {
  return reinterpret_cast<PyObject*>(reinterpret_cast<ObjectHead*>(object)->type);
}

// The engine; null with an error set in a forked child.
Engine* engine_of(PyObject* self) {
  Engine* engine = reinterpret_cast<EngineObject*>(self)->engine->get();
  if (!engine->forked()) return engine;
  PyErr_Format(PyExc_RuntimeError, "used in a forked child of the process that joined");
  return nullptr;
}

PyObject* call(PyObject* object, Name method) { return PyObject_CallMethodObjArgs(object, names[method], nullptr); }

struct Plain {
  bool on_device = false;  // wanted there, or on the CPU
  uint8_t code = 0;
  char* data = nullptr;
  uint64_t nbytes = 0;
};

// Whether a tensor is plain. Memory on the CPU that is written must be torch's own: another's may be read-only.
bool is_plain(PyObject* tensor, bool written, Plain& found) {
  if (PyDict_GetItemWithError(plain_types, type_of(tensor)) == nullptr) return false;
  Ref kind(PyObject_CallFunctionObjArgs(kind_of, tensor, nullptr));
  PyObject* wanted = found.on_device ? &_Py_FalseStruct : &_Py_TrueStruct;
  if (!kind || PyDict_GetItemWithError(plain_kinds, kind.get()) != wanted) return false;
  if (!Ref(call(tensor, n_is_contiguous)).is_true()) return false;
  Ref dtype(PyObject_GetAttr(tensor, names[n_dtype]));
  PyObject* code = dtype ? PyDict_GetItemWithError(codes, dtype.get()) : nullptr;
  if (!code) return false;
  found.code = uint8_t(PyLong_AsLong(code));
  found.nbytes = Ref(PyObject_GetAttr(tensor, names[n_nbytes])).number();
  uint64_t address = Ref(call(tensor, n_data_ptr)).number();
  found.data = reinterpret_cast<char*>(address);
  if (found.on_device) return !PyErr_Occurred();
  Ref storage(call(tensor, n_untyped_storage));
  if (!storage || (written && !Ref(call(storage.get(), n_resizable)).is_true())) return false;
  uint64_t begin = Ref(call(storage.get(), n_data_ptr)).number();
  uint64_t length = Ref(call(storage.get(), n_nbytes)).number();
  // A storage that was resized is no longer what the tensor says.
  return !PyErr_Occurred() && (!found.nbytes || (begin && address + found.nbytes <= begin + length));
}

bool plain(PyObject* tensor, bool written, Plain& found) {
  bool is = is_plain(tensor, written, found);
  PyErr_Clear();  // Python's checks will say it better
  return is;
}

// Whether a mode of the calling thread has a say in what is done; also true where that cannot be told.
bool watched() {
  for (Py_ssize_t i = 0, size = watchers ? PyTuple_Size(watchers) : 0; i < size; i++) {
    Ref says(PyObject_CallFunctionObjArgs(PyTuple_GetItem(watchers, i), nullptr));
    if (says && PyObject_IsTrue(says.get()) == 0) continue;
    PyErr_Clear();
    return true;
  }
  return false;
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

// (outcome, peer, mode, dtype, nbytes): what it is, of whom, and what they have instead. One that nobody knows is 0; one that
// is pending where something is `owed` is 4.
PyObject* outcome_of(Engine& engine, uint64_t id) {
  Outcome outcome;
  OperationRef operation = engine.look(id, &outcome);
  Signature theirs = operation && outcome == Outcome::mismatch ? operation->theirs : Signature{};
  return Py_BuildValue("(iiiiK)", int(outcome), operation ? operation->peer : -1, int(theirs.mode), int(theirs.dtype),
                       static_cast<unsigned long long>(theirs.nbytes));
}

// setup(types, kind_of, kinds, codes): the types of tensors that may be plain, as keys; the function that tells kinds apart;
// the kinds that were seen to be plain, True for those on the CPU; the code of each dtype.
PyObject* setup(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!count_is(count, 4)) return nullptr;
  const char* texts[n_count] = {"dtype", "is_contiguous", "data_ptr", "nbytes", "untyped_storage", "resizable",
                                "_callbacks", "remove_done_callback", "set_result", "run"};
  for (int i = 0; i < n_count; i++) names[i] = PyUnicode_InternFromString(texts[i]);
  for (int i = 0; i < 4; i++) Py_IncRef(args[i]);
  plain_types = args[0], kind_of = args[1], plain_kinds = args[2], codes = args[3];
  return none();
}

// setup_watchers(functions): a tuple, see `watched`.
PyObject* setup_watchers(PyObject*, PyObject* functions) {
  Py_IncRef(functions);
  watchers = functions;
  return none();
}

// go_on(future): let the task that alone awaits a future of asyncio go on, in a callback of its loop; false if it is not so. In
// compiled code, so that no signal handler runs where the task is told by nobody any more (futures of Python do let it run).
PyObject* go_on(PyObject*, PyObject* future) {
  Ref steps(PyObject_GetAttr(future, names[n_callbacks]));
  if (!steps) return nullptr;
  if (steps.get() == &_Py_NoneStruct || PyList_Size(steps.get()) != 1) return PyBool_FromLong(false);
  PyObject *step, *context, *told = PyList_GetItem(steps.get(), 0);
  Py_IncRef(told);  // futures of Python, as of nest_asyncio, give the list itself
  Ref held(told);
  if (!PyArg_ParseTuple(told, "OO", &step, &context)) return nullptr;
  Ref removed(PyObject_CallMethodObjArgs(future, names[n_remove], step, nullptr));
  Ref set(removed ? PyObject_CallMethodObjArgs(future, names[n_set_result], &_Py_NoneStruct, nullptr) : nullptr);
  Ref gone(set ? PyObject_CallMethodObjArgs(context, names[n_run], step, future, nullptr) : nullptr);
  return gone ? PyBool_FromLong(true) : nullptr;
}

// answer_heartbeats(epoll, stop, ended): answer pings until `stop` is readable; descriptors, see `heartbeats.h`.
PyObject* heartbeats(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!count_is(count, 3)) return nullptr;
  int epoll = int(PyLong_AsLong(args[0])), stop = int(PyLong_AsLong(args[1])), ended = int(PyLong_AsLong(args[2]));
  if (PyErr_Occurred()) return nullptr;
  unlocked([&] { answer_heartbeats(epoll, stop, ended); });
  return none();
}

// A plain message, and of one on the device what it is noted in until its caller is done with it, and as what.
struct PlainMessage {
  Message message;
  PyObject *held = nullptr, *keeper = nullptr;
};

// A message as (receives, peer, key, tensor, device) say it: `device` is None for the CPU, else (event, streamed, held, keeper). False
// if the tensor is not plain, or with an error set.
bool plain_message(PyObject* const* args, PlainMessage& found) {
  bool receives = args[0] == &_Py_TrueStruct, on_device = args[4] != &_Py_NoneStruct;
  int peer = int(PyLong_AsLong(args[1]));
  uint64_t key = number(args[2]);
  unsigned long long after = 0;
  int streamed = 0;
  if (PyErr_Occurred()) return false;
  if (on_device && !PyArg_ParseTuple(args[4], "KiOO", &after, &streamed, &found.held, &found.keeper)) return false;
  Plain tensor{on_device};
  if (!plain(args[3], receives, tensor)) return false;
  Signature signature{on_device ? mode_device : mode_fixed, tensor.code, tensor.nbytes};
  found.message = {receives, on_device, peer, key, signature, tensor.data, {}, true, reinterpret_cast<void*>(after), streamed != 0};
  return true;
}

// Start a message and let its caller `go_on` with it, without the interpreter's lock. Its number goes into the list `number` before a
// signal handler can run; 0 if nothing was started, or with an error set. One on the device is started and noted under that lock, so
// that whoever is to begin it instead, in Python, finds it.
template <class F>
uint64_t started(Engine& engine, const PlainMessage& plain, PyObject* number, F go_on) {
  uint64_t id = 0;
  auto start = [&] { return id = engine.start_plain(plain.message); };
  auto rest = [&] { return go_on(id), 0; };
  if (!plain.message.on_device) {
    unlocked([&] { return start() ? rest() : 0; });
  } else if (start()) {
    Ref noted(PyLong_FromUnsignedLongLong(id));
    if (!noted || PyDict_SetItem(plain.held, noted.get(), plain.keeper) < 0) return engine.withdraw(id), 0;
    unlocked(rest);
  }
  return id && PyList_SetItem(number, 0, PyLong_FromUnsignedLongLong(id)) == 0 ? id : 0;
}

// exchange(number, receives, peer, key, tensor, device, seconds): send or receive a tensor, and wait for that. Its outcome; None if
// nothing was started. Its number is still to be taken, see `started`.
PyObject* exchange(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Engine* engine = reinterpret_cast<EngineObject*>(self)->engine->get();
  if (!count_is(count, 7)) return nullptr;
  bool interrupted = false;
  int64_t until = deadline(args[6]);
  PlainMessage plain;
  if (PyErr_Occurred()) return nullptr;
  if (engine->forked() || watched() || !plain_message(args + 1, plain)) return PyErr_Occurred() ? nullptr : none();
  Outcome outcome = Outcome::pending;
  uint64_t id = started(*engine, plain, args[0], [&](uint64_t id) {
    engine->wait(id, until, &interrupted);
    engine->look(id, &outcome);
  });
  if (!id) return PyErr_Occurred() ? nullptr : none();
  if (interrupted && !heeded(*engine, id)) return nullptr;
  return PyLong_FromLong(long(outcome));
}

bool ranks_of(PyObject* tuple, std::vector<int>& ranks) {
  for (Py_ssize_t i = 0, size = PyTuple_Size(tuple); i < size; i++) {
    ranks.push_back(int(PyLong_AsLong(PyTuple_GetItem(tuple, i))));
  }
  return !PyErr_Occurred();
}

// (ready, loop): the descriptor of an event loop that has nothing else to do, as `ready` is false; else -1.
int loop_of(PyObject* const* args) { return PyObject_IsTrue(args[0]) == 0 ? int(PyLong_AsLong(args[1])) : -1; }

// begin(number, receives, peer, key, tensor, device, ready, loop): begin to send or receive a tensor, whose end `progress` reports. Its
// outcome; None if nothing was started. All else as with `exchange`.
PyObject* begin(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Engine* engine = reinterpret_cast<EngineObject*>(self)->engine->get();
  if (!count_is(count, 8)) return nullptr;
  int loop = loop_of(args + 6);
  PlainMessage plain;
  if (PyErr_Occurred()) return nullptr;
  if (engine->forked() || watched() || !plain_message(args + 1, plain)) return PyErr_Occurred() ? nullptr : none();
  Outcome outcome = Outcome::pending;
  uint64_t id = started(*engine, plain, args[0], [&](uint64_t id) { outcome = engine->begin(id, loop); });
  if (!id) return PyErr_Occurred() ? nullptr : none();
  return PyLong_FromLong(long(outcome));
}

// Copy what rank `root` has sent with a broadcast of one length: its outcome, which is not done for what Python has to refuse.
Outcome absorb(Engine& engine, uint64_t id, int root, const Plain& to) {
  Outcome outcome = Outcome::pending;
  OperationRef operation = engine.look(id, &outcome);
  if (!operation || outcome != Outcome::done) return outcome;
  auto& heard = static_cast<CollectiveOperation&>(*operation).heard;
  auto said = heard.find(root);
  if (said == heard.end()) return outcome;  // it is our own
  if (said->second.payload.size() != to.nbytes) return Outcome::mismatch;
  memcpy(to.data, said->second.payload.data(), to.nbytes);
  return outcome;
}

// The longest payload that travels with a fingerprint, to all members together; see `matching/collective_plan.py`.
constexpr uint64_t inline_bytes = 512 * 1024;

// broadcast(number, group, ranks, digest, root, us, tensor, ready, loop): as `begin`, of a broadcast. `root` and `us` are places in
// `ranks`.
PyObject* broadcast(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Engine* engine = reinterpret_cast<EngineObject*>(self)->engine->get();
  std::vector<int> ranks;
  if (!count_is(count, 9) || !ranks_of(args[2], ranks)) return nullptr;
  uint64_t group = number(args[1]), digest = number(args[3]);
  int32_t root = int(PyLong_AsLong(args[4])), us = int(PyLong_AsLong(args[5]));
  int loop = loop_of(args + 7);
  Plain tensor;
  if (PyErr_Occurred()) return nullptr;
  if (engine->forked() || watched() || !plain(args[6], us != root, tensor)) return none();
  if (!tensor.nbytes || tensor.nbytes * (ranks.size() - 1) > inline_bytes) return none();
  constexpr uint8_t kind = 1, no_reduction = 255, with_fingerprint = 1;
  std::string fingerprint(24, 0);
  uint8_t facts[] = {kind, tensor.code, no_reduction, with_fingerprint};
  memcpy(&fingerprint[0], &digest, 8), memcpy(&fingerprint[8], facts, 4), memcpy(&fingerprint[12], &root, 4);
  memcpy(&fingerprint[16], &tensor.nbytes, 8);
  std::vector<Span> outgoing(us == root ? ranks.size() : 0, Span{tensor.data, tensor.nbytes});
  Outcome outcome = Outcome::pending;
  uint64_t id = unlocked([&] {
    uint64_t id = engine->start_plain(group, ranks, fingerprint, outgoing);
    if (id) outcome = engine->begin(id, loop);
    return id;
  });
  if (!id) return none();
  if (PyList_SetItem(args[0], 0, PyLong_FromUnsignedLongLong(id)) < 0) return nullptr;
  return PyLong_FromLong(long(outcome == Outcome::done ? absorb(*engine, id, ranks[root], tensor) : outcome));
}

// broadcasted(number, root, tensor, written): the outcome of a broadcast from that world rank, which is in the tensor if it is done.
// `written` where we are not the root.
PyObject* broadcasted(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Engine* engine = engine_of(self);
  if (!engine || !count_is(count, 4)) return nullptr;
  uint64_t id = number(args[0]);
  int root = int(PyLong_AsLong(args[1]));
  Plain tensor;
  if (PyErr_Occurred()) return nullptr;
  return PyLong_FromLong(long(plain(args[2], args[3] == &_Py_TrueStruct, tensor) ? absorb(*engine, id, root, tensor) : Outcome::mismatch));
}

// Memory on the device as Python says it: (address, event), or None for what Python begins.
bool place_of(PyObject* said, char*& address, void*& after) {
  unsigned long long at = 0, event = 0;
  if (said != &_Py_NoneStruct && !PyArg_ParseTuple(said, "KK", &at, &event)) return false;
  address = reinterpret_cast<char*>(at), after = reinterpret_cast<void*>(event);
  return true;
}

// A message as Python says it: (receives, on_device, peer, key, mode, dtype, nbytes, data, tail). `data` is the address of the
// caller's memory, bytes that are copied, or None for memory of the engine's own; on the device see `place_of`.
bool message_of(PyObject* said, Message& message) {
  int receives, on_device, mode, dtype;
  unsigned long long key, nbytes;
  PyObject *data, *tail;
  bool parsed = PyArg_ParseTuple(said, "iiiKiiKOO", &receives, &on_device, &message.peer, &key, &mode, &dtype, &nbytes,
                                 &data, &tail);
  if (!parsed) return false;
  message.receives = receives, message.on_device = on_device, message.key = key;
  message.signature = {uint16_t(mode), uint8_t(dtype), nbytes};
  char* bytes;
  Py_ssize_t size;
  if (tail != &_Py_NoneStruct) {
    if (PyBytes_AsStringAndSize(tail, &bytes, &size) < 0) return false;
    message.tail.assign(bytes, size_t(size));
  }
  if (on_device) return place_of(data, message.data, message.after);
  if (PyObject_IsInstance(data, reinterpret_cast<PyObject*>(&PyBytes_Type)) == 1) {
    message.borrowed = false;
    if (PyBytes_AsStringAndSize(data, &message.data, &size) < 0) return false;
  } else if (data != &_Py_NoneStruct) {
    message.data = static_cast<char*>(PyLong_AsVoidPtr(data));
  }
  return !PyErr_Occurred();
}

// start((...)): the number of the operation.
PyObject* start(PyObject* self, PyObject* said) {
  Engine* engine = engine_of(self);
  Message message;
  if (!engine || !message_of(said, message)) return nullptr;
  return PyLong_FromUnsignedLongLong(unlocked([&] { return engine->start(message); }));
}

// start_all([(...), ...]): the numbers of the operations; what goes to one peer goes out together.
PyObject* start_all(PyObject* self, PyObject* said) {
  Engine* engine = engine_of(self);
  if (!engine) return nullptr;
  std::vector<Message> messages(size_t(PyList_Size(said)));
  for (size_t i = 0; i < messages.size(); i++) {
    if (!message_of(PyList_GetItem(said, Py_ssize_t(i)), messages[i])) return nullptr;
  }
  return list_of(unlocked([&] { return engine->start(messages); }));
}

// start_any(peers, key, mode, dtype, nbytes, memory): an address, or on the device see `place_of`.
PyObject* start_any(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Engine* engine = engine_of(self);
  std::vector<int> peers;
  if (!engine || !count_is(count, 6) || !ranks_of(args[0], peers)) return nullptr;
  uint64_t key = number(args[1]);
  Signature signature{uint16_t(PyLong_AsLong(args[2])), uint8_t(PyLong_AsLong(args[3])), number(args[4])};
  bool on_device = PyObject_IsInstance(args[5], reinterpret_cast<PyObject*>(&PyLong_Type)) == 0;
  char* to = on_device ? nullptr : static_cast<char*>(PyLong_AsVoidPtr(args[5]));
  void* after = nullptr;
  if (PyErr_Occurred() || (on_device && !place_of(args[5], to, after))) return nullptr;
  uint64_t id = unlocked([&] { return engine->receive_any(peers, key, signature, to, on_device, after); });
  return PyLong_FromUnsignedLongLong(id);
}

// collective(group, ranks, fingerprint, launches, outgoing): `outgoing` has bytes, (address, length) or None for each rank.
PyObject* collective(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Engine* engine = engine_of(self);
  std::vector<int> ranks;
  if (!engine || !count_is(count, 5) || !ranks_of(args[1], ranks)) return nullptr;
  uint64_t group = number(args[0]);
  char* bytes;
  Py_ssize_t size;
  if (PyErr_Occurred() || PyBytes_AsStringAndSize(args[2], &bytes, &size) < 0) return nullptr;
  std::string fingerprint(bytes, size_t(size));
  bool launches = PyObject_IsTrue(args[3]) == 1;
  std::vector<Span> outgoing(ranks.size());
  for (size_t i = 0; i < ranks.size(); i++) {
    PyObject* data = PyList_GetItem(args[4], Py_ssize_t(i));
    if (!data) return nullptr;
    unsigned long long address, length;
    if (data == &_Py_NoneStruct) continue;
    if (PyObject_IsInstance(data, reinterpret_cast<PyObject*>(&PyBytes_Type)) == 1) {
      if (PyBytes_AsStringAndSize(data, &bytes, &size) < 0) return nullptr;
      outgoing[i] = {bytes, uint64_t(size)};
    } else {
      if (!PyArg_ParseTuple(data, "KK", &address, &length)) return nullptr;
      outgoing[i] = {reinterpret_cast<char*>(address), length};
    }
  }
  uint64_t id = unlocked([&] { return engine->collective(group, ranks, fingerprint, launches, outgoing); });
  return PyLong_FromUnsignedLongLong(id);
}

// parts(number, [(receives, peer, address, length), ...]): move these of a collective that was in `owed`.
PyObject* parts(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Engine* engine = engine_of(self);
  if (!engine || !count_is(count, 2)) return nullptr;
  uint64_t id = number(args[0]);
  Py_ssize_t size = PyList_Size(args[1]);
  if (size < 0) return nullptr;
  std::vector<Part> found(static_cast<size_t>(size));
  for (size_t i = 0; i < found.size(); i++) {
    int receives;
    unsigned long long address, length;
    PyObject* said = PyList_GetItem(args[1], Py_ssize_t(i));
    if (!said || !PyArg_ParseTuple(said, "iiKK", &receives, &found[i].peer, &address, &length)) return nullptr;
    found[i].receives = receives, found[i].data = reinterpret_cast<char*>(address), found[i].nbytes = length;
  }
  if (PyErr_Occurred()) return nullptr;
  return unlocked([&] { return engine->exchange(id, found), 0; }), none();
}

PyObject* wait_for(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Engine* engine = engine_of(self);
  if (!engine || !count_is(count, 2)) return nullptr;
  uint64_t id = number(args[0]);
  int64_t until = deadline(args[1]);
  if (PyErr_Occurred() || !waited(*engine, id, until)) return nullptr;
  return outcome_of(*engine, id);
}

// attend(number, loop): wait for a moment in an event loop that has nothing else to do, see `Engine::attend`; as `wait`.
PyObject* attend(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Engine* engine = engine_of(self);
  if (!engine || !count_is(count, 2)) return nullptr;
  uint64_t id = number(args[0]);
  int loop = int(PyLong_AsLong(args[1]));
  if (PyErr_Occurred()) return nullptr;
  unlocked([&] { return engine->attend(id, loop), 0; });
  return outcome_of(*engine, id);
}

// A method of the engine that takes the number of an operation, or of a peer.
template <PyObject* (*function)(Engine&, uint64_t)>
PyObject* of(PyObject* self, PyObject* argument) {
  Engine* engine = engine_of(self);
  if (!engine) return nullptr;
  uint64_t wanted = number(argument);
  return PyErr_Occurred() ? nullptr : function(*engine, wanted);
}

PyObject* take(Engine& engine, uint64_t id) { return unlocked([&] { return engine.take(id), 0; }), none(); }

PyObject* over(Engine& engine, uint64_t id) { return unlocked([&] { return engine.over(id), 0; }), none(); }

PyObject* begun(Engine& engine, uint64_t id) { return engine.begun(id), none(); }

// [(number, peer, dropped), ...]: see `Flown`.
PyObject* flown_list(const std::vector<Flown>& flown) {
  PyObject* list = PyList_New(Py_ssize_t(flown.size()));
  for (size_t i = 0; list && i < flown.size(); i++) {
    PyObject* entry =
        Py_BuildValue("(Kii)", static_cast<unsigned long long>(flown[i].id), flown[i].peer, int(flown[i].dropped));
    if (!entry) return Py_DecRef(list), nullptr;
    PyList_SetItem(list, Py_ssize_t(i), entry);
  }
  return list;
}

PyObject* adopt(Engine& engine, uint64_t id) { return flown_list(unlocked([&] { return engine.adopt(id); })); }

// None if it is over for us; else the list of `adopt`.
PyObject* withdraw(Engine& engine, uint64_t id) {
  std::vector<Flown> flown;
  return unlocked([&] { return engine.withdraw(id, &flown); }) ? flown_list(flown) : none();
}

// join(number, stream): let the stream of a caller wait for the end of a message that is in the stream; false if CUDA refuses that.
PyObject* join(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Engine* engine = engine_of(self);
  if (!engine || !count_is(count, 2)) return nullptr;
  uint64_t id = number(args[0]);
  auto* stream = reinterpret_cast<void*>(number(args[1]));
  if (PyErr_Occurred()) return nullptr;
  return PyBool_FromLong(unlocked([&] { return engine->join(id, stream).empty(); }));
}

PyObject* leave(Engine& engine, uint64_t id) { return PyBool_FromLong(engine.leave(id)); }

PyObject* landed(Engine& engine, uint64_t id) { return unlocked([&] { return engine.landed(id), 0; }), none(); }

PyObject* keep(Engine& engine, uint64_t id) { return unlocked([&] { return engine.keep(id), 0; }), none(); }

// (number, dtype, nbytes, shape) of the message whose payload lies on the device for a receive; the number is 0 if it does not.
PyObject* on_device(Engine& engine, uint64_t id) {
  OperationRef operation = engine.look(id);
  if (!operation || operation->type != Operation::Type::receive) return PyErr_Format(PyExc_ValueError, "it is no receive");
  auto receive = std::static_pointer_cast<ReceiveOperation>(operation);
  auto& message = receive->taken ? *receive->taken : *receive;
  return Py_BuildValue("(KiKN)", static_cast<unsigned long long>(engine.on_device(receive)), int(message.dtype),
                       static_cast<unsigned long long>(message.length),
                       PyBytes_FromStringAndSize(message.shape.data(), Py_ssize_t(message.shape.size())));
}

PyObject* notify(Engine& engine, uint64_t id) {
  return PyBool_FromLong(unlocked([&] { return engine.notify(id); }));
}

PyObject* needs(Engine& engine, uint64_t peer) { return PyBool_FromLong(engine.needs(int(peer))); }

PyObject* drain(Engine& engine, uint64_t peer) {
  return PyBool_FromLong(unlocked([&] { return engine.drain(int(peer)); }));
}

// (matched, ranks...): what it waits for now.
PyObject* awaited(Engine& engine, uint64_t id) {
  Awaited found = engine.awaited(id);
  PyObject* list = PyList_New(Py_ssize_t(found.ranks.size()) + 1);
  if (!list) return nullptr;
  PyList_SetItem(list, 0, PyBool_FromLong(found.matched));
  for (size_t i = 0; i < found.ranks.size(); i++) PyList_SetItem(list, Py_ssize_t(i) + 1, PyLong_FromLong(found.ranks[i]));
  return list;
}

constexpr char keeper[] = "multiworld._engine.keeper";

void let_go(PyObject* capsule) { delete static_cast<OperationRef*>(PyCapsule_GetPointer(capsule, keeper)); }

// Memory of the engine's own, which lives as long as the keeper: (address, length).
PyObject* memory_of(const char* at, uint64_t length) {
  return Py_BuildValue("(KK)", reinterpret_cast<unsigned long long>(at), static_cast<unsigned long long>(length));
}

// What an operation that is done got without memory of the caller's: (keeper, dtype, address, length) of a message; of a
// collective (keeper, {rank: (fingerprint, (address, length))}).
PyObject* received(Engine& engine, uint64_t id) {
  OperationRef operation = engine.look(id);
  if (!operation || !operation->done()) return PyErr_Format(PyExc_ValueError, "nothing was received");
  PyObject* capsule = PyCapsule_New(new OperationRef(operation), keeper, let_go);
  if (!capsule) return nullptr;
  if (operation->type == Operation::Type::receive) {
    auto& receive = static_cast<ReceiveOperation&>(*operation);
    return Py_BuildValue("(NiN)", capsule, int(receive.dtype), memory_of(receive.to, receive.length));
  }
  PyObject* heard = PyDict_New();
  for (auto& [rank, said] : static_cast<CollectiveOperation&>(*operation).heard) {
    PyObject* key = PyLong_FromLong(rank);
    PyObject* entry = Py_BuildValue(
        "(NN)", PyBytes_FromStringAndSize(said.fingerprint.data(), Py_ssize_t(said.fingerprint.size())),
        memory_of(said.payload.data(), said.payload.size()));
    if (heard && key && entry) PyDict_SetItem(heard, key, entry);
    Py_DecRef(key);
    Py_DecRef(entry);
  }
  return Py_BuildValue("(NN)", capsule, heard);
}

// [(number, whether it is to be begun on the backend, peer), ...]: see `Owed`.
PyObject* owed(PyObject* self, PyObject*) {
  Engine* engine = engine_of(self);
  if (!engine) return nullptr;
  std::vector<Owed> found = engine->owed();
  PyObject* list = PyList_New(Py_ssize_t(found.size()));
  for (size_t i = 0; list && i < found.size(); i++) {
    PyObject* entry =
        Py_BuildValue("(Kii)", static_cast<unsigned long long>(found[i].id), int(found[i].begins), found[i].peer);
    if (!entry) return Py_DecRef(list), nullptr;
    PyList_SetItem(list, Py_ssize_t(i), entry);
  }
  return list;
}

PyObject* progress(PyObject* self, PyObject*) {
  Engine* engine = engine_of(self);
  if (!engine) return nullptr;
  std::vector<uint64_t> done = unlocked([&] { return engine->progress(); });
  return list_of(done);
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
  return engine ? PyBool_FromLong(unlocked([&] { return engine->flush(); })) : nullptr;
}

PyObject* end(PyObject* self, PyObject* orderly) {
  Engine* engine = engine_of(self);
  if (!engine) return nullptr;
  int is = PyObject_IsTrue(orderly);
  if (is < 0) return nullptr;
  unlocked([&] { return engine->end(is), 0; });
  return none();
}

// shut(kept): {peer: descriptor} of those that are held.
PyObject* shut(PyObject* self, PyObject* kept) {
  Engine* engine = engine_of(self);
  std::vector<int> peers;
  if (!engine || !ranks_of(kept, peers)) return nullptr;
  PyObject* found = PyDict_New();
  for (auto [peer, fd] : unlocked([&] { return engine->shut(peers); })) {
    Ref key(PyLong_FromLong(peer)), descriptor(PyLong_FromLong(fd));
    if (found && key && descriptor) PyDict_SetItem(found, key.get(), descriptor.get());
  }
  return found;
}

PyObject* linger(PyObject* self, PyObject*) {
  Engine* engine = engine_of(self);
  return engine ? PyBool_FromLong(unlocked([&] { return engine->linger(); })) : nullptr;
}

PyObject* gives_up(PyObject* self, PyObject*) {
  Engine* engine = engine_of(self);
  return engine ? PyBool_FromLong(unlocked([&] { return engine->gives_up(); })) : nullptr;
}

PyObject* bye(PyObject* self, PyObject* gives_up) {
  Engine* engine = engine_of(self);
  if (!engine) return nullptr;
  bool is = PyObject_IsTrue(gives_up) == 1;
  return unlocked([&] { return engine->bye(is), 0; }), none();
}

// part_with(descriptors, close): close connections that are held, or leave them to the caller.
PyObject* part_with(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Engine* engine = engine_of(self);
  std::vector<int> descriptors;
  if (!engine || !count_is(count, 2) || !ranks_of(args[0], descriptors)) return nullptr;
  int is = PyObject_IsTrue(args[1]);
  if (is < 0) return nullptr;
  unlocked([&] { return engine->part_with(descriptors, is), 0; });
  return none();
}

// begin_at(peers, mark): the mark of connections that were in use before.
PyObject* begin_at(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Engine* engine = engine_of(self);
  std::vector<int> peers;
  char* mark;
  Py_ssize_t size;
  if (!engine || !count_is(count, 2) || !ranks_of(args[0], peers)) return nullptr;
  if (PyBytes_AsStringAndSize(args[1], &mark, &size) < 0) return nullptr;
  engine->begin_at(peers, {mark, size_t(size)});
  return none();
}

// keeps(peer, key)
PyObject* keeps(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Engine* engine = engine_of(self);
  if (!engine || !count_is(count, 2)) return nullptr;
  int peer = int(PyLong_AsLong(args[0]));
  uint64_t key = number(args[1]);
  return PyErr_Occurred() ? nullptr : PyBool_FromLong(engine->keeps(peer, key));
}

// depart(peer, gives_up): whether every operation can still end.
PyObject* depart(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Engine* engine = engine_of(self);
  if (!engine || !count_is(count, 2)) return nullptr;
  int peer = int(PyLong_AsLong(args[0]));
  bool gives_up = PyObject_IsTrue(args[1]) == 1;
  return PyErr_Occurred() ? nullptr : PyBool_FromLong(unlocked([&] { return engine->depart(peer, gives_up); }));
}

// connect(peer, receives, launcher)
PyObject* connect(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Engine* engine = engine_of(self);
  if (!engine || !count_is(count, 3)) return nullptr;
  int peer = int(PyLong_AsLong(args[0]));
  bool receives = PyObject_IsTrue(args[1]) == 1;
  std::shared_ptr<Launcher> launcher = PyErr_Occurred() ? nullptr : launcher_in(args[2]);
  return launcher ? (engine->connect(peer, receives, std::move(launcher)), none()) : nullptr;
}

// value(ranks, group, name, value): bytes for the set-up of a backend.
PyObject* value(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Engine* engine = engine_of(self);
  std::vector<int> ranks;
  if (!engine || !count_is(count, 4) || !ranks_of(args[0], ranks)) return nullptr;
  uint64_t group = number(args[1]);
  char *name, *data;
  Py_ssize_t name_size, data_size;
  if (PyErr_Occurred() || PyBytes_AsStringAndSize(args[2], &name, &name_size) < 0) return nullptr;
  if (PyBytes_AsStringAndSize(args[3], &data, &data_size) < 0) return nullptr;
  Span spans[] = {{name, uint64_t(name_size)}, {data, uint64_t(data_size)}};
  return unlocked([&] { return engine->value(ranks, group, spans[0], spans[1]), 0; }), none();
}

// {peer: (bytes sent, bytes received)}
PyObject* traffic(PyObject* self, PyObject*) {
  Engine* engine = engine_of(self);
  PyObject* found = engine ? PyDict_New() : nullptr;
  if (!found) return nullptr;
  for (auto& [peer, bytes] : engine->traffic()) {
    PyObject* key = PyLong_FromLong(peer);
    PyObject* entry = Py_BuildValue("(KK)", static_cast<unsigned long long>(bytes.first),
                                    static_cast<unsigned long long>(bytes.second));
    if (key && entry) PyDict_SetItem(found, key, entry);
    Py_DecRef(key);
    Py_DecRef(entry);
  }
  return found;
}

// {peer: "tcp", "unix" or "ring"}: how large payloads go to each.
PyObject* ways(PyObject* self, PyObject*) {
  constexpr const char* said[] = {"tcp", "unix", "ring"};
  Engine* engine = engine_of(self);
  PyObject* found = engine ? PyDict_New() : nullptr;
  if (!found) return nullptr;
  for (auto& [peer, way] : engine->ways()) {
    PyObject* key = PyLong_FromLong(peer);
    PyObject* entry = Py_BuildValue("s", said[int(way)]);
    if (key && entry) PyDict_SetItem(found, key, entry);
    Py_DecRef(key);
    Py_DecRef(entry);
  }
  return found;
}

// shared_memory_error(): why none could be had last, as a number of an error; 0 if that has not happened.
PyObject* shared_memory_error(PyObject*, PyObject*) { return PyLong_FromLong(Ring::refused()); }

template <auto descriptor>
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
    reinterpret_cast<EngineObject*>(self)->engine = new auto(std::make_shared<Engine>(rank, descriptors, longest));
  } catch (const std::system_error& error) {
    Py_DecRef(self);
    errno = error.code().value();
    return PyErr_SetFromErrno(PyExc_OSError);
  }
  return self;
}

void engine_free(PyObject* self) {
  auto* engine = reinterpret_cast<EngineObject*>(self)->engine;
  if (!engine || !(*engine)->forked()) delete engine;  // in a forked child it may be half changed
  PyObject* type = type_of(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(reinterpret_cast<PyTypeObject*>(type), Py_tp_free))(self);
  Py_DecRef(type);
}

PyMethodDef engine_methods[] = {
    FAST("begin_at", begin_at),
    FAST("part_with", part_with),
    FAST("exchange", exchange),
    FAST("begin", begin),
    PLAIN("go_on", go_on, METH_O),
    FAST("broadcast", broadcast),
    FAST("broadcasted", broadcasted),
    PLAIN("start", start, METH_O),
    PLAIN("start_all", start_all, METH_O),
    FAST("start_any", start_any),
    FAST("collective", collective),
    FAST("parts", parts),
    FAST("wait", wait_for),
    FAST("attend", attend),
    PLAIN("outcome", of<outcome_of>, METH_O),
    PLAIN("received", of<received>, METH_O),
    PLAIN("take", of<take>, METH_O),
    PLAIN("withdraw", of<withdraw>, METH_O),
    PLAIN("owed", owed, METH_NOARGS),
    PLAIN("over", of<over>, METH_O),
    PLAIN("begun", of<begun>, METH_O),
    PLAIN("adopt", of<adopt>, METH_O),
    FAST("connect", connect),
    FAST("join", join),
    PLAIN("leave", of<leave>, METH_O),
    PLAIN("landed", of<landed>, METH_O),
    PLAIN("keep", of<keep>, METH_O),
    PLAIN("on_device", of<on_device>, METH_O),
    PLAIN("notify", of<notify>, METH_O),
    PLAIN("awaited", of<awaited>, METH_O),
    PLAIN("needs", of<needs>, METH_O),
    PLAIN("drain", of<drain>, METH_O),
    FAST("keeps", keeps),
    FAST("depart", depart),
    FAST("value", value),
    PLAIN("bye", bye, METH_O),
    PLAIN("gives_up", gives_up, METH_NOARGS),
    PLAIN("traffic", traffic, METH_NOARGS),
    PLAIN("ways", ways, METH_NOARGS),
    PLAIN("progress", progress, METH_NOARGS),
    PLAIN("events", events, METH_NOARGS),
    PLAIN("flush", flush, METH_NOARGS),
    PLAIN("end", end, METH_O),
    PLAIN("shut", shut, METH_O),
    PLAIN("linger", linger, METH_NOARGS),
    PLAIN("readable", fileno<&Engine::readable>, METH_NOARGS),
    PLAIN("eventful", fileno<&Engine::eventful>, METH_NOARGS),
    {},
};
PyType_Slot engine_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(engine_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(engine_free)},
    {Py_tp_methods, engine_methods},
    {0, nullptr},
};
PyType_Spec engine_spec = {"multiworld._engine.Engine", sizeof(EngineObject), 0, 0, engine_slots};

PyMethodDef functions[] = {
    FAST("setup", setup),
    PLAIN("setup_watchers", setup_watchers, METH_O),
    FAST("answer_heartbeats", heartbeats),
    FAST("reduce", reduce_memory),
    PLAIN("shared_memory_error", shared_memory_error, METH_NOARGS),
    {},
};
PyModuleDef module = {
    {{1, nullptr}, nullptr, 0, nullptr}, "multiworld._engine", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr,
};

}  // namespace

extern "C" __attribute__((visibility("default"))) PyObject* PyInit__engine() {
  PyObject* made = PyModule_Create2(&module, abi_version);
  PyObject* type = made ? PyType_FromSpec(&engine_spec) : nullptr;
  if (!type || PyModule_AddObject(made, "Engine", type) < 0 || !add_launcher(made)) return nullptr;
  return made;
}
