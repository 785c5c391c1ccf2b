/* The control block: mapping it, and deciding what a call does. */
#define _GNU_SOURCE
#include "control.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static struct gpuless_control private_block; /* until gpuless_start */
struct gpuless_control *gpuless = &private_block;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void map_block(const char *path) {
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, sizeof *gpuless) != 0) {
    fprintf(stderr, "[gpuless] cannot open control file %s\n", path);
    _exit(97);
  }
  void *p = mmap(NULL, sizeof *gpuless, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (p == MAP_FAILED) _exit(97);
  gpuless = p;
}

/* Maps the block of a probe that was forked from a process with torch in it; that process itself has none. */
void gpuless_start(const char *path) {
  map_block(path);
  static const char *const names[] = {
#define X(name) #name,
      GPULESS_SITES(X)
#undef X
  };
  for (int i = 0; i < SITE_COUNT; i++) {
    strncpy(gpuless->site[i].name, names[i], GPULESS_NAME_SIZE - 1);
    gpuless->site[i].comm = GPULESS_ANY_COMM;
  }
  gpuless->version = GPULESS_VERSION;
  gpuless->sites = SITE_COUNT;
  gpuless->record_size = sizeof(struct gpuless_record);
  gpuless->magic = GPULESS_MAGIC;
}

static void wait_until_lifted(struct gpuless_record *r) {
  uint32_t generation = r->generation;
  r->hanging++;
  while (r->generation == generation) pthread_cond_wait(&changed, &lock);
  r->hanging--;
}

static int is_hit(struct gpuless_record *r, int comm) {
  if (r->action == ACTION_NONE) return 0;
  if (r->comm != GPULESS_ANY_COMM && r->comm != comm) return 0;
  uint32_t n = r->seen++;
  return n >= r->after && (r->times == 0 || n - r->after < r->times);
}

int gpuless_gate(enum gpuless_site site, int comm, int *hold) {
  struct gpuless_record *r = &gpuless->site[site];
  int result = 0;
  pthread_mutex_lock(&lock);
  r->calls++;
  if (is_hit(r, comm)) {
    r->fired++;
    if (r->action == ACTION_FAIL) result = r->code;
    if (r->action == ACTION_HOLD && hold) *hold = 1;
    if (r->action == ACTION_HANG) wait_until_lifted(r);
  }
  pthread_mutex_unlock(&lock);
  return result;
}

int gpuless_is_held(enum gpuless_site site, uint32_t generation) {
  pthread_mutex_lock(&lock);
  struct gpuless_record *r = &gpuless->site[site];
  int held = r->action == ACTION_HOLD && r->generation == generation;
  pthread_mutex_unlock(&lock);
  return held;
}

int gpuless_unimplemented(const char *name, int code) {
  pthread_mutex_lock(&lock);
  gpuless->unimplemented++;
  strncpy(gpuless->last_unimplemented, name, sizeof gpuless->last_unimplemented - 1);
  pthread_mutex_unlock(&lock);
  if (getenv("GPULESS_LOG")) fprintf(stderr, "[gpuless] not imitated: %s\n", name);
  return code;
}

/* ---- for the probes, by ctypes ---------------------------------------- */

static struct gpuless_record *find(const char *name) {
  for (int i = 0; i < SITE_COUNT; i++)
    if (strcmp(gpuless->site[i].name, name) == 0) return &gpuless->site[i];
  return NULL;
}

/* Sets (or with ACTION_NONE lifts) one site's injection; -1: no such site. */
int gpuless_inject(const char *name, int action, int code, int comm,
                   uint32_t after, uint32_t times) {
  struct gpuless_record *r = find(name);
  if (!r) return -1;
  pthread_mutex_lock(&lock);
  r->action = action;
  r->code = code;
  r->comm = comm;
  r->after = after;
  r->times = times;
  r->seen = 0;
  r->generation++;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return 0;
}

/* The counter `what` of a site: 0 calls, 1 fired, 2 hanging; -1: no such site. */
long gpuless_counter(const char *name, int what) {
  struct gpuless_record *r = find(name);
  if (!r) return -1;
  return what == 0 ? r->calls : what == 1 ? r->fired : r->hanging;
}

long gpuless_total(int what) {
  return what == 0 ? gpuless->launched : what == 1 ? gpuless->queued
       : what == 2 ? gpuless->aborted  : gpuless->unimplemented;
}
