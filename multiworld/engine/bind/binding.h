// What every part of the binding uses: references, the lock of the interpreter, exceptions.
#pragma once
#include <cerrno>
#include <new>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "bind/stable_abi.h"

namespace multiworld {

inline PyObject* none() {
  Py_IncRef(&_Py_NoneStruct);
  return &_Py_NoneStruct;
}

// Without the interpreter's lock.
template <class F>
auto unlocked(F function) {
  PyThreadState* state = PyEval_SaveThread();
  struct Restore {
    PyThreadState* state;
    // When the interpreter ends, CPython before 3.14 unwinds the stack of a thread that comes back here, to end it.
    ~Restore() noexcept(false) { PyEval_RestoreThread(state); }
  } restore{state};
  return function();
}

inline bool count_is(Py_ssize_t count, Py_ssize_t wanted) {
  if (count != wanted) PyErr_Format(PyExc_TypeError, "%zd arguments, %zd expected", count, wanted);
  return count == wanted;
}

inline uint64_t number(PyObject* object) { return PyLong_AsUnsignedLongLong(object); }

// A reference of our own.
class Ref {
 public:
  explicit Ref(PyObject* object) : object_(object) {}
  ~Ref() { Py_DecRef(object_); }
  Ref(const Ref&) = delete;
  PyObject* get() const { return object_; }
  explicit operator bool() const { return object_; }
  bool is_true() const { return object_ == &_Py_TrueStruct; }
  uint64_t number() const { return object_ ? PyLong_AsUnsignedLongLong(object_) : 0; }

 private:
  PyObject* object_;
};

inline PyObject* list_of(const std::vector<uint64_t>& numbers) {
  PyObject* list = PyList_New(Py_ssize_t(numbers.size()));
  for (size_t i = 0; list && i < numbers.size(); i++) {
    PyList_SetItem(list, Py_ssize_t(i), PyLong_FromUnsignedLongLong(numbers[i]));
  }
  return list;
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
    } catch (const std::system_error& error) {
      errno = error.code().value();
      return PyErr_SetFromErrno(PyExc_OSError);
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

}  // namespace multiworld
