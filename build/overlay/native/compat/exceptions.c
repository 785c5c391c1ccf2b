// Parts of the exception support that newer compilers call by name. Each is made of what libstdc++ has had since GCC 4.8
// or the C++ ABI defines; the names are mangled, since a program may not declare them in namespace std.
#define HIDDEN __attribute__((visibility("hidden")))

struct globals {  // __cxa_eh_globals of the Itanium C++ ABI, 2.2.2
  void* caught;
  unsigned int uncaught;
};
struct globals* __cxa_get_globals(void);
void* __cxa_begin_catch(void*);
void _ZSt9terminatev(void);                                       // std::terminate()
void _ZSt17__throw_bad_allocv(void);                              // std::__throw_bad_alloc()
void _ZNSt15__exception_ptr13exception_ptrC1ERKS0_(void*, void*);  // its copy constructor
void _ZNSt15__exception_ptr13exception_ptrD1Ev(void*);             // its destructor

// std::uncaught_exceptions(), GCC 6
HIDDEN int _ZSt19uncaught_exceptionsv(void) {
  return (int)__cxa_get_globals()->uncaught;
}

// std::__exception_ptr::exception_ptr::_M_addref(), exported since GCC 11: a copy that is never destroyed.
HIDDEN void _ZNSt15__exception_ptr13exception_ptr9_M_addrefEv(void** self) {
  void* copy;
  _ZNSt15__exception_ptr13exception_ptrC1ERKS0_(&copy, self);
}

// std::__exception_ptr::exception_ptr::_M_release(), exported since GCC 11
HIDDEN void _ZNSt15__exception_ptr13exception_ptr10_M_releaseEv(void** self) {
  _ZNSt15__exception_ptr13exception_ptrD1Ev(self);
  *self = 0;
}

// std::__exception_ptr::exception_ptr::exception_ptr(void*), exported since GCC 7
HIDDEN void _ZNSt15__exception_ptr13exception_ptrC1EPv(void** self, void* thrown) {
  *self = thrown;
  if (thrown) {
    _ZNSt15__exception_ptr13exception_ptr9_M_addrefEv(self);
  }
}

// std::__throw_bad_array_new_length(), GCC 11: the standard containers threw its base class before.
HIDDEN void _ZSt28__throw_bad_array_new_lengthv(void) {
  _ZSt17__throw_bad_allocv();
}

// GCC 4.9: likewise
HIDDEN void __cxa_throw_bad_array_new_length(void) {
  _ZSt17__throw_bad_allocv();
}

// GCC 14: an exception leaves a function that may not throw.
HIDDEN void __cxa_call_terminate(void* thrown) {
  __cxa_begin_catch(thrown);
  _ZSt9terminatev();
}
