/* Imitated NCCL: the life of communicators. */
#define _GNU_SOURCE
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "futex.h"
#include "segment.h"

static comm_t *comms; /* by number; kept after their end */
static int comm_count, comm_room;
pthread_mutex_t comm_lock = PTHREAD_MUTEX_INITIALIZER;

comm_t comm_new(int ranks, int rank, int blocking) {
  comm_t c = calloc(1, sizeof *c);
  if (!c) return NULL;
  pthread_mutex_lock(&comm_lock);
  if (comm_count == comm_room) {
    comm_room = comm_room ? 2 * comm_room : 64;
    comms = realloc(comms, comm_room * sizeof *comms);
    if (!comms) abort();
  }
  *c = (struct gpuless_comm){.id = comm_count, .ranks = ranks, .rank = rank,
                             .device = device_current(), .blocking = blocking};
  comms[comm_count++] = c;
  pthread_mutex_unlock(&comm_lock);
  __atomic_add_fetch(&gpuless->communicators, 1, __ATOMIC_RELAXED);
  return c;
}

/* ---- what a communicator takes no call for ---------------------------- */

/* NCCL's proxy notices the end of a connection; of a peer on the same host, which it reaches through memory, it
 * notices nothing. The first to see it is ncclCommGetAsyncError, which every other call asks as well
 * (ncclCommEnsureReady in init.cc). */
static void notice_lost_peer(comm_t c) {
  pthread_mutex_lock(&comm_lock); /* against the end of the segment */
  if (gpuless_is_on(SWITCH_NETWORK) && c->segment && !c->failed && segment_lost_peer(c))
    c->failed = REMOTE_ERROR;
  pthread_mutex_unlock(&comm_lock);
}

static result state_of(comm_t c) {
  if (c->state) return c->state;
  notice_lost_peer(c);
  return c->failed;
}

static int is_dead(comm_t c) { return c->aborted || c->destroyed; }

result comm_check_handle(comm_t c, const char *name) {
  if (!c) return INVALID_ARGUMENT;
  return is_dead(c) ? gpuless_misuse(name, INVALID_ARGUMENT) : SUCCESS;
}

result comm_check(comm_t c, const char *name) {
  result r = comm_check_handle(c, name);
  if (r) return r;
  r = state_of(c);
  return r == IN_PROGRESS ? INVALID_ARGUMENT : r; /* "before the previous operation returned ncclSuccess" */
}

API result ncclCommGetAsyncError(comm_t c, result *error) {
  if (!c) return INVALID_ARGUMENT;
  if (is_dead(c)) return gpuless_misuse("ncclCommGetAsyncError", INVALID_ARGUMENT);
  *error = gpuless_gate(SITE_ncclCommGetAsyncError, c->id, NULL);
  if (!*error) *error = state_of(c);
  return SUCCESS;
}

/* ---- calls that take long --------------------------------------------- */

struct task {
  comm_t comm;
  comm_job *job;
  void *argument;
  struct marker *end;
};

static void *run_task(void *argument) {
  struct task t = *(struct task *)argument;
  free(argument);
  result r = t.job(t.comm, t.argument);
  __atomic_store_n(&t.comm->state, r, __ATOMIC_SEQ_CST);
  marker_finish(t.end);
  marker_drop(t.end);
  return NULL;
}

static result start_task(comm_t c, comm_job *job, void *argument) {
  struct task *t = malloc(sizeof *t);
  pthread_t thread;
  if (!t) return SYSTEM_ERROR;
  marker_drop(c->job);
  c->job = marker_new();
  *t = (struct task){c, job, argument, marker_keep(c->job)};
  c->state = IN_PROGRESS;
  if (pthread_create(&thread, NULL, run_task, t)) return SYSTEM_ERROR;
  pthread_detach(thread);
  return IN_PROGRESS;
}

result comm_run(comm_t c, comm_job *job, void *argument) {
  if (!group_depth() && c->blocking) return job(c, argument);
  result r = start_task(c, job, argument);
  return group_depth() && r == IN_PROGRESS ? group_join(c) : r;
}

static void ring_own_bell(comm_t c) {
  pthread_mutex_lock(&comm_lock);
  if (c->segment) segment_ring_bell(c->segment, c->rank);
  pthread_mutex_unlock(&comm_lock);
}

void comm_stop(comm_t c) {
  c->stopped = 1;
  __atomic_thread_fence(__ATOMIC_SEQ_CST); /* a creation sets the segment first and then looks at the flag */
  ring_own_bell(c);
  if (c->parent) ring_own_bell(c->parent);
  __atomic_add_fetch(&gpuless->changed, 1, __ATOMIC_SEQ_CST); /* for what is held or naps */
  futex_wake(&gpuless->changed);
}

/* ---- the end ---------------------------------------------------------- */

/* Kernels of the communicator end first; what it shares is given up then. */
static void give_up(comm_t c) {
  marker_wait(c->last);
  pthread_mutex_lock(&comm_lock);
  struct segment *s = c->segment;
  c->segment = NULL;
  pthread_mutex_unlock(&comm_lock);
  if (s) segment_leave(s, c->rank, c->ranks, !c->stopped);
  marker_drop(c->last);
  c->last = NULL;
  free(c->premul);
  c->premul = NULL;
  c->premul_count = 0;
}

static void count_end(comm_t c) {
  __atomic_sub_fetch(&gpuless->communicators, 1, __ATOMIC_RELAXED);
  if (c->aborted) __atomic_add_fetch(&gpuless->aborted, 1, __ATOMIC_RELAXED);
}

void comm_discard(comm_t c) {
  c->destroyed = 1;
  count_end(c);
  give_up(c);
}

/* ---- creation --------------------------------------------------------- */

int config_blocking(const void *config, int inherited) {
  struct { size_t size; unsigned magic, version; int blocking; } head;
  if (!config) return inherited;
  memcpy(&head, config, sizeof head);
  return head.blocking == INT_MIN /* NCCL_CONFIG_UNDEF_INT */ ? 1 : head.blocking;
}

/* A creation that failed in its call leaves no communicator behind. */
result comm_created(comm_t c, comm_t *out, result r) {
  if (!r || r == IN_PROGRESS) return r;
  *out = NULL;
  comm_discard(c);
  return r;
}

static result join(comm_t c, void *argument) {
  unique_id *id = argument;
  result r = gpuless_is_alone() ? SUCCESS : segment_join(c, id);
  free(id);
  return r;
}

result comm_make(enum gpuless_site site, comm_t *out, int ranks, const unique_id *id, int rank,
                 const void *config) {
  int e = gpuless_gate(site, comm_count, NULL);
  if (e) return e;
  if (gpuless->sticky) return CUDA_ERROR;
  if (ranks < 1 || rank < 0 || rank >= ranks || !out) return INVALID_ARGUMENT;
  unique_id *copy = malloc(sizeof *copy);
  comm_t c = copy ? comm_new(ranks, rank, config_blocking(config, 1)) : NULL;
  if (!c) return SYSTEM_ERROR;
  *copy = *id;
  *out = c;
  return comm_created(c, out, comm_run(c, join, copy));
}

API result ncclGetUniqueId(unique_id *id) {
  int e = gpuless_gate(SITE_ncclGetUniqueId, GPULESS_ANY_COMM, NULL);
  memset(id, 7, sizeof *id);
  return e || gpuless_is_alone() ? e : segment_name(id);
}
API result ncclCommInitRank(comm_t *c, int ranks, unique_id id, int rank) {
  return comm_make(SITE_ncclCommInitRank, c, ranks, &id, rank, NULL);
}
API result ncclCommInitRankConfig(comm_t *c, int ranks, unique_id id, int rank, void *config) {
  return comm_make(SITE_ncclCommInitRankConfig, c, ranks, &id, rank, config);
}
/* Several ids only spread the load of the bootstrap in NCCL. */
API result ncclCommInitRankScalable(comm_t *c, int ranks, int rank, int ids, unique_id *id, void *config) {
  if (ids < 1 || ids > ranks) return INVALID_ARGUMENT;
  return comm_make(SITE_ncclCommInitRankConfig, c, ranks, id, rank, config);
}
API result ncclGroupStart(void);
API result ncclGroupEnd(void);
API int cudaSetDevice(int device);
API result ncclCommInitAll(comm_t *out, int count, const int *devices) {
  unique_id id;
  int before = device_current();
  result e = ncclGetUniqueId(&id);
  if (e) return e;
  ncclGroupStart();
  for (int i = 0; i < count; i++) {
    cudaSetDevice(devices ? devices[i] : i);
    ncclCommInitRank(&out[i], count, id, i);
  }
  cudaSetDevice(before);
  return ncclGroupEnd();
}

static result end_job(comm_t c, void *argument) {
  marker_wait(argument); /* of a call before this one: a creation, a launch */
  marker_drop(argument);
  while (__atomic_load_n(&c->users, __ATOMIC_SEQ_CST)) gpuless_nap();
  give_up(c);
  return SUCCESS;
}

/* In a group the flag is set at once, the waiting is the group's: several communicators that share a stream have
 * to be aborted in one. */
static result end(comm_t c) {
  count_end(c);
  struct marker *job = marker_keep(c->job);
  if (group_depth()) return comm_run(c, end_job, job);
  return end_job(c, job);
}

static int is_in_use(comm_t c) { return __atomic_load_n(&c->finalizing, __ATOMIC_SEQ_CST); }

/* As in NCCL, ending no communicator is no error: torch 2.6 aborts twice, the second time with NULL. A failed
 * abort leaves the communicator as it was; so does one that hangs, until the injection is lifted. */
API result ncclCommAbort(comm_t c) {
  if (!c) return SUCCESS;
  if (is_dead(c)) return gpuless_misuse("ncclCommAbort", INVALID_ARGUMENT);
  int e = gpuless_gate(SITE_ncclCommAbort, c->id, NULL);
  if (e) return e;
  if (is_in_use(c)) return gpuless_misuse("ncclCommFinalize", INVALID_ARGUMENT);
  c->aborted = 1;
  comm_stop(c);
  return end(c);
}
API result ncclCommDestroy(comm_t c) {
  if (!c) return SUCCESS;
  if (is_dead(c)) return gpuless_misuse("ncclCommDestroy", INVALID_ARGUMENT);
  int e = gpuless_gate(SITE_ncclCommDestroy, c->id, NULL);
  if (e) return e;
  if (is_in_use(c)) return gpuless_misuse("ncclCommFinalize", INVALID_ARGUMENT);
  c->destroyed = 1;
  return end(c);
}

static result finalize(comm_t c, void *argument) {
  marker_wait(c->last);
  if (c->segment && !c->stopped) segment_finalize(c);
  return SUCCESS;
}
static result start_finalize(comm_t c) {
  result e = gpuless_gate(SITE_ncclCommFinalize, c->id, NULL);
  if (e) return e;
  if (c->stopped) return INVALID_USAGE; /* "Calling ncclCommFinalize after revoke is invalid" */
  if (c->finalized) return INVALID_ARGUMENT;
  c->finalized = 1;
  return comm_run(c, finalize, NULL);
}
/* A blocking one works on the communicator in the caller's thread, and an abort does not wait for that. */
API result ncclCommFinalize(comm_t c) {
  if (!c) return SUCCESS;
  result e = comm_check(c, "ncclCommFinalize");
  if (e) return e;
  __atomic_add_fetch(&c->finalizing, c->blocking, __ATOMIC_SEQ_CST);
  e = start_finalize(c);
  __atomic_sub_fetch(&c->finalizing, c->blocking, __ATOMIC_SEQ_CST);
  return e;
}
static result quiesce(comm_t c, void *argument) {
  marker_wait(c->last);
  return SUCCESS;
}
/* Running operations end, no more are taken; it still has to be destroyed or aborted (NCCL 2.28). */
API result ncclCommRevoke(comm_t c, int flags) {
  if (!c) return INVALID_ARGUMENT;
  if (is_dead(c)) return gpuless_misuse("ncclCommRevoke", INVALID_ARGUMENT);
  if (flags || c->state == IN_PROGRESS) return INVALID_ARGUMENT;
  int e = gpuless_gate(SITE_ncclCommRevoke, c->id, NULL);
  if (e) return e;
  comm_stop(c);
  return comm_run(c, quiesce, NULL);
}

/* ---- questions -------------------------------------------------------- */

static result ask(comm_t c, const char *name, int *out, int value) {
  if (!out) return INVALID_ARGUMENT;
  result e = comm_check(c, name);
  if (!e) *out = value;
  return e;
}
API result ncclCommCount(comm_t c, int *n) { return ask(c, "ncclCommCount", n, c ? c->ranks : 0); }
API result ncclCommUserRank(comm_t c, int *r) { return ask(c, "ncclCommUserRank", r, c ? c->rank : 0); }
API result ncclCommCuDevice(comm_t c, int *d) { return ask(c, "ncclCommCuDevice", d, c ? c->device : 0); }

#ifndef FAKE_NCCL_VERSION
#error "FAKE_NCCL_VERSION: the version of the wheel's NCCL, e.g. 22105"
#endif
API result ncclGetVersion(int *v) { *v = FAKE_NCCL_VERSION; return SUCCESS; }
API const char *ncclGetLastError(comm_t c) { return ""; }
API const char *ncclGetErrorString(result r) {
  static const char *const text[] = {
      "no error", "unhandled cuda error", "unhandled system error", "internal error",
      "invalid argument", "invalid usage",
      "remote process exited or there was a network error", "NCCL operation in progress", "timeout"};
  return r >= 0 && r < (int)(sizeof text / sizeof *text) ? text[r] : "unknown result code";
}

/* ---- for the probes, by ctypes ---------------------------------------- */

API int gpuless_comm_count(void) { return comm_count; }
API int gpuless_comm_state(int id) { /* 0 live, 1 aborted or revoked, 2 destroyed, -1 none */
  pthread_mutex_lock(&comm_lock);
  comm_t c = id >= 0 && id < comm_count ? comms[id] : NULL;
  pthread_mutex_unlock(&comm_lock);
  if (!c) return -1;
  return c->aborted || c->stopped ? 1 : c->destroyed ? 2 : 0;
}
