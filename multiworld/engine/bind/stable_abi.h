// What the binding uses of CPython's stable ABI, version 3.10, so that it compiles where Python.h is not installed.
//
// Declarations only, as the stable ABI promises them to every later version of CPython (PEP 384 and
// https://docs.python.org/3/c-api/stable.html); `tests/multiworld/engine/test_stable_abi.py` compares them with Python.h where
// there is one. Builds without the GIL have another ABI and are refused by their file names, which do not take `abi3`.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {

struct _object;
struct _typeobject;
struct _ts;
using PyObject = _object;
using PyTypeObject = _typeobject;
using PyThreadState = _ts;
using Py_ssize_t = ptrdiff_t;
using PyCFunction = PyObject* (*)(PyObject*, PyObject*);
using PyCapsule_Destructor = void (*)(PyObject*);
using allocfunc = PyObject* (*)(PyTypeObject*, Py_ssize_t);
using freefunc = void (*)(void*);

// An object begins with a count and its type.
struct ObjectHead {
  Py_ssize_t references;
  PyTypeObject* type;
};
struct PyMethodDef {
  const char* ml_name;
  PyCFunction ml_meth;
  int ml_flags;
  const char* ml_doc;
};
struct PyModuleDef_Base {
  ObjectHead head;
  PyObject* (*m_init)();
  Py_ssize_t m_index;
  PyObject* m_copy;
};
struct PyModuleDef {
  PyModuleDef_Base m_base;
  const char* m_name;
  const char* m_doc;
  Py_ssize_t m_size;
  PyMethodDef* m_methods;
  void *m_slots, *m_traverse, *m_clear, *m_free;
};
struct PyType_Slot {
  int slot;
  void* pfunc;
};
struct PyType_Spec {
  const char* name;
  int basicsize;
  int itemsize;
  unsigned int flags;
  PyType_Slot* slots;
};

constexpr int METH_NOARGS = 0x0004, METH_O = 0x0008, METH_FASTCALL = 0x0080;
constexpr int Py_tp_alloc = 47, Py_tp_dealloc = 52, Py_tp_methods = 64, Py_tp_new = 65, Py_tp_free = 74;
constexpr int abi_version = 3;

extern PyObject _Py_NoneStruct, _Py_TrueStruct, _Py_FalseStruct;
extern PyObject *PyExc_TypeError, *PyExc_OSError, *PyExc_RuntimeError, *PyExc_ValueError;
extern PyTypeObject PyDict_Type, PyBytes_Type, PyLong_Type;

void Py_IncRef(PyObject*);
void Py_DecRef(PyObject*);
PyObject* PyObject_Type(PyObject*);
PyObject* PyObject_GetAttr(PyObject*, PyObject*);
PyObject* PyObject_CallFunctionObjArgs(PyObject*, ...);
PyObject* PyObject_CallMethodObjArgs(PyObject*, PyObject*, ...);
int PyObject_IsTrue(PyObject*);
int PyObject_IsInstance(PyObject*, PyObject*);
PyObject* PyUnicode_InternFromString(const char*);
const char* PyUnicode_AsUTF8AndSize(PyObject*, Py_ssize_t*);
PyObject* PyBytes_FromStringAndSize(const char*, Py_ssize_t);
int PyBytes_AsStringAndSize(PyObject*, char**, Py_ssize_t*);
PyObject* PyBool_FromLong(long);
PyObject* PyLong_FromLong(long);
PyObject* PyLong_FromUnsignedLongLong(unsigned long long);
long PyLong_AsLong(PyObject*);
unsigned long long PyLong_AsUnsignedLongLong(PyObject*);
void* PyLong_AsVoidPtr(PyObject*);
double PyFloat_AsDouble(PyObject*);
PyObject* PyList_New(Py_ssize_t);
int PyList_Append(PyObject*, PyObject*);
int PyList_SetItem(PyObject*, Py_ssize_t, PyObject*);
Py_ssize_t PyList_Size(PyObject*);
PyObject* PyList_GetItem(PyObject*, Py_ssize_t);
Py_ssize_t PyTuple_Size(PyObject*);
PyObject* PyTuple_GetItem(PyObject*, Py_ssize_t);
PyObject* PyDict_New();
int PyDict_SetItem(PyObject*, PyObject*, PyObject*);
PyObject* PyCapsule_New(void*, const char*, PyCapsule_Destructor);
void* PyCapsule_GetPointer(PyObject*, const char*);
PyObject* PyDict_GetItemWithError(PyObject*, PyObject*);
int PyDict_Next(PyObject*, Py_ssize_t*, PyObject**, PyObject**);
int PyArg_ParseTuple(PyObject*, const char*, ...);
PyObject* Py_BuildValue(const char*, ...);
PyObject* PyErr_Occurred();
void PyErr_Clear();
PyObject* PyErr_Format(PyObject*, const char*, ...);
PyObject* PyErr_SetFromErrno(PyObject*);
PyObject* PyErr_NoMemory();
void PyErr_Fetch(PyObject**, PyObject**, PyObject**);
void PyErr_Restore(PyObject*, PyObject*, PyObject*);
int PyErr_CheckSignals();
PyThreadState* PyEval_SaveThread();
void PyEval_RestoreThread(PyThreadState*);
void* PyType_GetSlot(PyTypeObject*, int);
PyObject* PyType_FromSpec(PyType_Spec*);
PyObject* PyModule_Create2(PyModuleDef*, int);
int PyModule_AddObject(PyObject*, const char*, PyObject*);
}
