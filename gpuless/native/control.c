/* The control block: mapping it, and deciding what a call does. */
#define _GNU_SOURCE
#include "control.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "futex.h"

static struct gpuless_control private_block; /* of a process that was given no file */
struct gpuless_control *gpuless = &private_block;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int alone;

static struct gpuless_control *map_block(const char *path) {
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 && errno == ENOENT && !alone) return &private_block; /* its folder is gone: nobody will ask */
  if (fd < 0 || ftruncate(fd, sizeof *gpuless) != 0) {
    fprintf(stderr, "[gpuless] cannot open control file %s\n", path);
    _exit(97);
  }
  void *p = mmap(NULL, sizeof *gpuless, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (p == MAP_FAILED) _exit(97);
  return p;
}

/* The magic number is written last: who reads it finds everything else in place. */
static void fill_block(struct gpuless_control *block) {
  static const char *const names[] = {
#define X(name) #name,
      GPULESS_SITES(X)
#undef X
  };
  for (int i = 0; i < SITE_COUNT; i++) {
    strncpy(block->site[i].name, names[i], GPULESS_NAME_SIZE - 1);
    block->site[i].comm = GPULESS_ANY_COMM;
  }
  block->version = GPULESS_VERSION;
  block->sites = SITE_COUNT;
  block->record_size = sizeof(struct gpuless_record);
  block->process = getpid();
  block->switches[SWITCH_NETWORK] = getenv("GPULESS_NETWORK") != NULL;
  block->switches[SWITCH_FREE_WAITS] = getenv("GPULESS_FREE_WAITS") != NULL;
  block->switches[SWITCH_LOAD_WAITS] = getenv("GPULESS_LOAD_WAITS") != NULL;
  block->switches[SWITCH_MISUSE_ABORTS] = getenv("GPULESS_MISUSE_ABORTS") != NULL;
  block->switches[SWITCH_STICKY] = !alone;
  __atomic_store_n(&block->magic, GPULESS_MAGIC, __ATOMIC_RELEASE);
}

/* Maps the block of a probe that was forked from a process with torch in it; that process itself has none. */
void gpuless_start(const char *path) {
  alone = 1;
  gpuless = map_block(path);
  fill_block(gpuless);
}

static void start_in_folder(void) {
  const char *folder = getenv("GPULESS_CONTROL");
  char path[PATH_MAX];
  struct gpuless_control *block = &private_block;
  if (folder) {
    snprintf(path, sizeof path, "%s/%d", folder, (int)getpid());
    block = map_block(path);
  }
  if (block->magic != GPULESS_MAGIC) fill_block(block);
  gpuless = block;
}

__attribute__((constructor)) static void start(void) {
  const char *transport = getenv("GPULESS_TRANSPORT");
  alone = transport && strcmp(transport, "loopback") == 0;
  pthread_atfork(NULL, NULL, start_in_folder);
  start_in_folder();
}

int gpuless_is_alone(void) { return alone; }
int gpuless_is_on(enum gpuless_switch which) { return gpuless->switches[which] != 0; }

void gpuless_nap(void) {
  const struct timespec limit = {0, 20000000};
  futex_wait(&gpuless->changed, __atomic_load_n(&gpuless->changed, __ATOMIC_SEQ_CST), &limit);
}

static void wait_until_lifted(struct gpuless_record *r) {
  uint32_t generation = r->generation;
  r->hanging++;
  while (*(volatile uint32_t *)&r->generation == generation) {
    pthread_mutex_unlock(&lock);
    gpuless_nap();
    pthread_mutex_lock(&lock);
  }
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

int gpuless_misuse(const char *name, int code) {
  pthread_mutex_lock(&lock);
  gpuless->misused++;
  strncpy(gpuless->last_misused, name, sizeof gpuless->last_misused - 1);
  pthread_mutex_unlock(&lock);
  fprintf(stderr, "[gpuless] use after free: %s was given a handle after its end\n", name);
  if (gpuless_is_on(SWITCH_MISUSE_ABORTS)) abort();
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
  __atomic_add_fetch(&gpuless->changed, 1, __ATOMIC_SEQ_CST);
  futex_wake(&gpuless->changed);
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
       : what == 2 ? gpuless->aborted
       : what == 3 ? gpuless->unimplemented
       : what == 4 ? gpuless->misused : gpuless->streams;
}

int gpuless_switch(int which, int on) {
  if (which < 0 || which >= SWITCH_COUNT) return -1;
  gpuless->switches[which] = on;
  return 0;
}
