// pthread_cond_clockwait() came with glibc 2.30; std::condition_variable waits on the monotonic clock with it. Where the
// C library of the machine has it, it is used. Where not, the wait follows the wall clock, as every timed wait of the
// official wheel does: its compiler knew no other.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <time.h>

typedef int clockwait(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);

static struct timespec on_the_wall(clockid_t clock, const struct timespec* deadline) {
  struct timespec now, wall;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &wall);
  wall.tv_sec += deadline->tv_sec - now.tv_sec;
  wall.tv_nsec += deadline->tv_nsec - now.tv_nsec;
  if (wall.tv_nsec < 0) {
    wall.tv_nsec += 1000000000L;
    wall.tv_sec -= 1;
  } else if (wall.tv_nsec >= 1000000000L) {
    wall.tv_nsec -= 1000000000L;
    wall.tv_sec += 1;
  }
  if (wall.tv_sec < 0) {  // a deadline of long ago, which pthread_cond_timedwait() would call invalid
    wall.tv_sec = wall.tv_nsec = 0;
  }
  return wall;
}

__attribute__((visibility("hidden"))) int pthread_cond_clockwait(
    pthread_cond_t* condition,
    pthread_mutex_t* mutex,
    clockid_t clock,
    const struct timespec* deadline) {
  static clockwait* volatile real;
  static volatile int asked;
  if (!asked) {  // two threads may ask at once, and get the same answer
    real = (clockwait*)dlsym(RTLD_DEFAULT, "pthread_cond_clockwait");
    __sync_synchronize();
    asked = 1;
  }
  if (real) {
    return real(condition, mutex, clock, deadline);
  }
  const struct timespec wall = clock == CLOCK_REALTIME ? *deadline : on_the_wall(clock, deadline);
  return pthread_cond_timedwait(condition, mutex, &wall);
}
