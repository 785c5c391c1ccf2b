#define _GNU_SOURCE
#include "link.h"

#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#define LONGEST_NAP 1000000 /* ns: how late a stop is seen */

/* Nanoseconds for a byte, which is what a GB/s is; 0 where no link is imitated. */
static double pace(void) {
  static double value = -1;
  if (value < 0) {
    const char *speed = getenv("GPULESS_LINK");
    value = speed && atof(speed) > 0 ? 1 / atof(speed) : 0;
  }
  return value;
}

static int is_carried(const struct transfer *t) {
  return pace() > 0 && t->class == RING_POINT_TO_POINT && t->bytes > EAGER_BYTES;
}

size_t link_moved(const struct transfer *t) { return is_carried(t) ? EAGER_BYTES : t->bytes; }

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* A link carries both directions at the same time. */
static int64_t duration(const struct transfer *transfers, int count) {
  size_t bytes[2] = {0, 0};
  for (int i = 0; i < count; i++)
    if (is_carried(&transfers[i])) bytes[transfers[i].sending] += transfers[i].bytes;
  return (bytes[0] > bytes[1] ? bytes[0] : bytes[1]) * pace();
}

void link_carry(comm_t c, const struct transfer *transfers, int count) {
  int64_t left = duration(transfers, count), until = now() + left;
  if (left) prctl(PR_SET_TIMERSLACK, 1); /* else a nap is 50 us longer */
  while (left > 0 && !c->stopped) {
    struct timespec nap = {0, left < LONGEST_NAP ? left : LONGEST_NAP};
    nanosleep(&nap, NULL);
    left = until - now();
  }
}
