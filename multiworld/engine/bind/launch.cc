#include "bind/launch.h"

#include <signal.h>
#include <unistd.h>

#include "bind/binding.h"
#include "launch/launcher.h"

namespace multiworld {

namespace launcher_binding {

namespace {

PyObject* type;

struct LauncherObject {
  ObjectHead head;
  std::shared_ptr<Launcher>* launcher;  // an engine may have it, too
  pid_t process;
};

// All signals are blocked in the block: they are other threads' to handle, and no call of CUDA's or NCCL's is interrupted.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// The launcher; null with an error set in a forked child, where its threads are not.
Launcher* launcher_of(PyObject* self) {
  auto* object = reinterpret_cast<LauncherObject*>(self);
  if (object->process == getpid()) return object->launcher->get();
  PyErr_Format(PyExc_RuntimeError, "used in a forked child of the process that joined");
  return nullptr;
}

void* handle(PyObject* object) { return PyLong_AsVoidPtr(object); }

// None, or an error in words.
PyObject* said(const std::string& error) { return error.empty() ? none() : PyErr_Format(PyExc_RuntimeError, "%s", error.c_str()); }

// A list of (kind, from, to, count, dtype, reduction, peer).
bool calls_of(PyObject* list, std::vector<Call>& calls) {
  Py_ssize_t size = PyList_Size(list);
  if (size < 0) return false;
  calls.reserve(size_t(size));
  for (Py_ssize_t i = 0; i < size; i++) {
    int kind, dtype, reduction, peer;
    unsigned long long from, to, count;
    if (!PyArg_ParseTuple(PyList_GetItem(list, i), "iKKKiii", &kind, &from, &to, &count, &dtype, &reduction, &peer)) return false;
    calls.push_back({Call::Kind(kind), reinterpret_cast<void*>(from), reinterpret_cast<void*>(to), count, dtype, reduction, peer});
  }
  return true;
}

// open({name: address}, stream, communicator): of functions, which those of NCCL need not be among without a communicator; 0 for none.
PyObject* open(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Launcher* launcher = launcher_of(self);
  if (!launcher || !count_is(count, 3)) return nullptr;
  Functions functions;
  PyObject *name, *address;
  for (Py_ssize_t at = 0; PyDict_Next(args[0], &at, &name, &address);) {
    const char* text = PyUnicode_AsUTF8AndSize(name, nullptr);
    if (text) functions.set(text, handle(address));
  }
  void *stream = handle(args[1]), *comm = handle(args[2]);
  return PyErr_Occurred() ? nullptr : (launcher->open(functions, stream, comm), none());
}

// add(launch, calls, after): None instead of calls if they are made in `prepare`. False once nothing is launched any more.
PyObject* add(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Launcher* launcher = launcher_of(self);
  if (!launcher || !count_is(count, 3)) return nullptr;
  std::vector<Call> calls;
  bool prepared = args[1] == &_Py_NoneStruct;
  uint64_t wanted = number(args[0]);
  void* after = handle(args[2]);
  if (PyErr_Occurred() || !(prepared || calls_of(args[1], calls))) return nullptr;
  return PyBool_FromLong(launcher->add(wanted, std::move(calls), after, prepared));
}

PyObject* tell_launch(PyObject* self, PyObject* launch) {
  Launcher* launcher = launcher_of(self);
  uint64_t wanted = launcher ? number(launch) : 0;
  return PyErr_Occurred() ? nullptr : PyBool_FromLong(launcher->tell_launch(wanted));
}

// join(launch, stream)
PyObject* join(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Launcher* launcher = launcher_of(self);
  if (!launcher || !count_is(count, 2)) return nullptr;
  uint64_t wanted = number(args[0]);
  void* stream = handle(args[1]);
  return PyErr_Occurred() ? nullptr : said(unlocked([&] { return launcher->join(wanted, stream); }));
}

// next(): (job, launch, [(report, launch, error)])
PyObject* next(PyObject* self, PyObject*) {
  Launcher* launcher = launcher_of(self);
  if (!launcher) return nullptr;
  Job job = unlocked([&] {
    SignalsBlocked blocked;
    return launcher->next();
  });
  PyObject* reports = PyList_New(Py_ssize_t(job.reports.size()));
  for (size_t i = 0; reports && i < job.reports.size(); i++) {
    const Report& report = job.reports[i];
    PyObject* entry = Py_BuildValue("(iKs)", int(report.type), static_cast<unsigned long long>(report.launch), report.error.c_str());
    if (!entry) return Py_DecRef(reports), nullptr;
    PyList_SetItem(reports, Py_ssize_t(i), entry);
  }
  return reports ? Py_BuildValue("(iKN)", int(job.type), static_cast<unsigned long long>(job.launch), reports) : nullptr;
}

// go_on(launch, calls)
PyObject* go_on(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Launcher* launcher = launcher_of(self);
  if (!launcher || !count_is(count, 2)) return nullptr;
  std::vector<Call> calls;
  uint64_t wanted = number(args[0]);
  if (PyErr_Occurred() || !calls_of(args[1], calls)) return nullptr;
  unlocked([&] {
    SignalsBlocked blocked;
    return launcher->go_on(wanted, std::move(calls)), 0;
  });
  return none();
}

// The numbers of what will not be launched.
PyObject* stop(PyObject* self, PyObject*) {
  Launcher* launcher = launcher_of(self);
  return launcher ? list_of(launcher->stop()) : nullptr;
}

PyObject* close(PyObject* self, PyObject*) {
  Launcher* launcher = launcher_of(self);
  return launcher ? (launcher->close(), none()) : nullptr;
}

PyObject* drained(PyObject* self, PyObject* seconds) {
  Launcher* launcher = launcher_of(self);
  std::chrono::duration<double> patience(launcher ? PyFloat_AsDouble(seconds) : 0);
  if (PyErr_Occurred()) return nullptr;
  auto whole = std::chrono::duration_cast<std::chrono::nanoseconds>(patience);
  return PyBool_FromLong(unlocked([&] { return launcher->drained(whole); }));
}

// A call of the communicator's; nothing to do before there is one.
template <std::string (Communicator::*function)()>
PyObject* of_communicator(PyObject* self, PyObject*) {
  Launcher* launcher = launcher_of(self);
  if (!launcher) return nullptr;
  Communicator* communicator = launcher->communicator();
  return communicator ? said(unlocked([&] { return (communicator->*function)(); })) : none();
}

PyObject* release(PyObject* self, PyObject*) {
  Launcher* launcher = launcher_of(self);
  return launcher ? (unlocked([&] { return launcher->release(), 0; }), none()) : nullptr;
}

PyObject* make(PyTypeObject* type, PyObject*, PyObject*) {
  auto alloc = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  auto* self = reinterpret_cast<LauncherObject*>(alloc(type, 0));
  if (self) self->launcher = new auto(std::make_shared<Launcher>()), self->process = getpid();
  return reinterpret_cast<PyObject*>(self);
}

// In a forked child it is left as it is: a thread may have been inside.
void destroy(PyObject* self) {
  auto* object = reinterpret_cast<LauncherObject*>(self);
  PyTypeObject* type = object->head.type;
  if (object->process == getpid()) delete object->launcher;
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DecRef(reinterpret_cast<PyObject*>(type));
}

PyMethodDef methods[] = {
    FAST("open", open),
    FAST("add", add),
    PLAIN("tell_launch", tell_launch, METH_O),
    FAST("join", join),
    PLAIN("next", next, METH_NOARGS),
    FAST("go_on", go_on),
    PLAIN("stop", stop, METH_NOARGS),
    PLAIN("close", close, METH_NOARGS),
    PLAIN("drained", drained, METH_O),
    PLAIN("settle", of_communicator<&Communicator::settle>, METH_NOARGS),
    PLAIN("finalize", of_communicator<&Communicator::finalize>, METH_NOARGS),
    PLAIN("abort", of_communicator<&Communicator::abort>, METH_NOARGS),
    PLAIN("release", release, METH_NOARGS),
    {},
};
PyType_Slot slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(make)},
    {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
    {Py_tp_methods, methods},
    {0, nullptr},
};
PyType_Spec spec = {"multiworld._engine.Launcher", sizeof(LauncherObject), 0, 0, slots};

}  // namespace

}  // namespace launcher_binding

std::shared_ptr<Launcher> launcher_in(PyObject* object) {
  int is = PyObject_IsInstance(object, launcher_binding::type);
  if (is == 0) PyErr_Format(PyExc_TypeError, "it is no launcher");
  return is == 1 ? *reinterpret_cast<launcher_binding::LauncherObject*>(object)->launcher : nullptr;
}

bool add_launcher(PyObject* module) {
  PyObject *type = launcher_binding::type = PyType_FromSpec(&launcher_binding::spec), *names = PyList_New(0);
  for (const char* name : function_names) {
    if (PyList_Append(names, Ref(PyUnicode_InternFromString(name)).get()) < 0) return false;
  }
  return type && PyModule_AddObject(module, "Launcher", type) == 0 && PyModule_AddObject(module, "LAUNCH_FUNCTIONS", names) == 0;
}

}  // namespace multiworld
