#define _GNU_SOURCE
#include "marker.h"

#include <stdlib.h>

#include "futex.h"

#define SPINS 100 /* about a microsecond: most waits are over by then, or take much longer */

struct marker {
  uint32_t finished; /* futex */
  uint32_t references;
  int64_t time;
};

struct marker *marker_new(void) {
  struct marker *m = calloc(1, sizeof *m);
  if (m) m->references = 1;
  return m;
}

struct marker *marker_keep(struct marker *m) {
  if (m) __atomic_add_fetch(&m->references, 1, __ATOMIC_RELAXED);
  return m;
}

void marker_drop(struct marker *m) {
  if (m && __atomic_sub_fetch(&m->references, 1, __ATOMIC_ACQ_REL) == 0) free(m);
}

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}

void marker_finish(struct marker *m) {
  if (!m) return;
  m->time = now();
  __atomic_store_n(&m->finished, 1, __ATOMIC_SEQ_CST);
  futex_wake(&m->finished);
}

int marker_is_finished(const struct marker *m) {
  return !m || __atomic_load_n(&m->finished, __ATOMIC_ACQUIRE);
}

void marker_wait(struct marker *m) {
  for (int i = 0; i < SPINS && !marker_is_finished(m); i++) cpu_relax();
  while (!marker_is_finished(m)) futex_wait(&m->finished, 0, NULL);
}

int marker_wait_for(struct marker *m, int milliseconds) {
  int64_t end = now() + milliseconds * 1000000ll;
  while (!marker_is_finished(m)) {
    int64_t left = end - now();
    if (left <= 0) return 0;
    struct timespec limit = {left / 1000000000, left % 1000000000};
    futex_wait(&m->finished, 0, &limit);
  }
  return 1;
}

int64_t marker_time(const struct marker *m) { return marker_is_finished(m) && m ? m->time : 0; }
