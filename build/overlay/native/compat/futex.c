// std::__atomic_futex_unsigned_base::_M_futex_wait_until_steady(), GCC 11: std::future waits on the monotonic clock with
// it. As libstdc++ has it, for kernels since Linux 2.6.25.
#define _GNU_SOURCE
#include <errno.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// Not FUTEX_PRIVATE_FLAG: libstdc++ wakes without it, and reaches only those who wait without it.
enum { WAIT_BITSET = 9, ANY_BIT = -1 };

// Returns false when the deadline has passed. A duration of C++ is passed like the number that it holds.
__attribute__((visibility("hidden"))) bool
_ZNSt28__atomic_futex_unsigned_base26_M_futex_wait_until_steadyEPjjbNSt6chrono8durationIlSt5ratioILl1ELl1EEEENS2_IlS3_ILl1ELl1000000000EEEE(
    void* self,
    unsigned int* word,
    unsigned int expected,
    bool limited,
    long seconds,
    long nanoseconds) {
  (void)self;
  if (limited && seconds < 0) {
    return false;
  }
  struct timespec deadline = {seconds, nanoseconds};
  long done = syscall(SYS_futex, word, WAIT_BITSET, expected, limited ? &deadline : 0, 0, ANY_BIT);
  return done != -1 || errno != ETIMEDOUT;
}
