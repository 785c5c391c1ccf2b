/* An imitated NCCL: communicators, groups and operations with NCCL's documented
 * semantics, and failures where the control block asks for them.
 *
 * Group semantics as documented for NCCL: between ncclGroupStart and the
 * outermost ncclGroupEnd of a thread nothing is launched, whatever communicator
 * it belongs to; a call that failed inside a group makes that ncclGroupEnd fail.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "transport.h"

#ifndef FAKE_NCCL_VERSION
#error "FAKE_NCCL_VERSION: the version of the wheel's NCCL, e.g. 22105"
#endif

#define API __attribute__((visibility("default")))
#define MAX_COMMS 1024
#define SUCCESS 0
#define INTERNAL_ERROR 3
#define INVALID_ARGUMENT 4
#define INVALID_USAGE 5

typedef int result;
typedef struct gpuless_comm *comm_t;
typedef struct { char bytes[128]; } unique_id;

static struct gpuless_comm *comms[MAX_COMMS];
static int comm_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static __thread int depth, group_error, queue_size, queue_room;
static __thread struct gpuless_op *queue;

/* ---- communicators ---------------------------------------------------- */

static result make_comm(comm_t *out, int ranks, int rank, int device) {
  comm_t c = calloc(1, sizeof *c);
  pthread_mutex_lock(&lock);
  int room = c && comm_count < MAX_COMMS;
  if (room) {
    *c = (struct gpuless_comm){comm_count, ranks, rank, device, 0, 0};
    comms[comm_count++] = c; /* kept after destruction: its state stays readable */
    *out = c;
  }
  pthread_mutex_unlock(&lock);
  return room ? SUCCESS : INTERNAL_ERROR;
}

API result ncclGetVersion(int *v) { *v = FAKE_NCCL_VERSION; return SUCCESS; }
API result ncclGetUniqueId(unique_id *id) {
  memset(id, 7, sizeof *id);
  return gpuless_gate(SITE_ncclGetUniqueId, GPULESS_ANY_COMM, NULL);
}
API result ncclCommInitRank(comm_t *c, int ranks, unique_id id, int rank) {
  int e = gpuless_gate(SITE_ncclCommInitRank, comm_count, NULL);
  return e ? e : make_comm(c, ranks, rank, 0);
}
API result ncclCommInitRankConfig(comm_t *c, int ranks, unique_id id, int rank, void *config) {
  int e = gpuless_gate(SITE_ncclCommInitRankConfig, comm_count, NULL);
  return e ? e : make_comm(c, ranks, rank, 0);
}
API result ncclCommInitRankScalable(comm_t *c, int ranks, int rank, int ids, unique_id *id,
                                    void *config) {
  int e = gpuless_gate(SITE_ncclCommInitRankConfig, comm_count, NULL);
  return e ? e : make_comm(c, ranks, rank, 0);
}
API result ncclCommSplit(comm_t c, int color, int key, comm_t *out, void *config) {
  if (!c) return INVALID_ARGUMENT;
  int e = gpuless_gate(SITE_ncclCommSplit, c->id, NULL);
  return e ? e : make_comm(out, c->ranks, c->rank, c->device);
}
API result ncclCommCount(comm_t c, int *n) { *n = c->ranks; return SUCCESS; }
API result ncclCommUserRank(comm_t c, int *r) { *r = c->rank; return SUCCESS; }
API result ncclCommCuDevice(comm_t c, int *d) { *d = c->device; return SUCCESS; }

API result ncclCommGetAsyncError(comm_t c, result *error) {
  if (!c) return INVALID_ARGUMENT;
  *error = gpuless_gate(SITE_ncclCommGetAsyncError, c->id, NULL);
  return SUCCESS;
}

/* As in NCCL, ending no communicator is no error: torch 2.6 aborts twice, the
 * second time with NULL. A failed abort leaves the communicator as it was; so does one that hangs,
 * until the injection is lifted. */
API result ncclCommAbort(comm_t c) {
  if (!c) return SUCCESS;
  int e = gpuless_gate(SITE_ncclCommAbort, c->id, NULL);
  if (e) return e;
  pthread_mutex_lock(&lock);
  if (!c->aborted) gpuless->aborted++;
  c->aborted = 1;
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}
API result ncclCommDestroy(comm_t c) {
  if (!c) return SUCCESS;
  int e = gpuless_gate(SITE_ncclCommDestroy, c->id, NULL);
  if (!e) c->destroyed = 1;
  return e;
}
API result ncclCommFinalize(comm_t c) {
  if (!c) return SUCCESS;
  return gpuless_gate(SITE_ncclCommFinalize, c->id, NULL);
}
API result ncclCommRevoke(comm_t c, int flags) {
  if (!c) return SUCCESS;
  int e = gpuless_gate(SITE_ncclCommRevoke, c->id, NULL);
  if (!e) c->aborted = 1;
  return e;
}
API result ncclCommRegister(comm_t c, void *buffer, size_t n, void **handle) {
  *handle = buffer;
  return SUCCESS;
}
API result ncclCommDeregister(comm_t c, void *handle) { return SUCCESS; }
API result ncclMemAlloc(void **p, size_t n) {
  return posix_memalign(p, 4096, n) ? 2 /* system error */ : SUCCESS;
}
API result ncclMemFree(void *p) { free(p); return SUCCESS; }
API result ncclRedOpCreatePreMulSum(int *op, void *scalar, int type, int where, comm_t c) {
  *op = 5; /* the first number after the predefined ones */
  return SUCCESS;
}
API result ncclRedOpDestroy(int op, comm_t c) { return SUCCESS; }

API const char *ncclGetLastError(comm_t c) { return ""; }
API const char *ncclGetErrorString(result r) {
  static const char *const text[] = {
      "no error", "unhandled cuda error", "unhandled system error", "internal error",
      "invalid argument", "invalid usage",
      "remote process exited or there was a network error", "NCCL operation in progress"};
  return r >= 0 && r < (int)(sizeof text / sizeof *text) ? text[r] : "unknown result code";
}

/* ---- operations and groups -------------------------------------------- */

int gpuless_is_pending(struct gpuless_pending p) {
  if (p.comm < 0) return 0;
  comm_t c = comms[p.comm];
  return !c->aborted && !c->destroyed && gpuless_is_held(p.site, p.generation);
}

static void launch(const struct gpuless_op *op) {
  struct gpuless_pending p = {op->comm->id, op->held ? (int)op->site : -1, op->generation};
  if (!op->held) gpuless_move(op);
  gpuless_hold_stream(op->stream, p);
  __atomic_add_fetch(&gpuless->launched, 1, __ATOMIC_RELAXED);
}

static result enqueue(const struct gpuless_op *op) {
  if (queue_size == queue_room) {
    int room = queue_room ? 2 * queue_room : 16;
    struct gpuless_op *grown = realloc(queue, room * sizeof *queue);
    if (!grown) return INTERNAL_ERROR;
    queue = grown;
    queue_room = room;
  }
  queue[queue_size++] = *op;
  __atomic_add_fetch(&gpuless->queued, 1, __ATOMIC_RELAXED);
  return SUCCESS;
}

static result submit(struct gpuless_op op) {
  if (!op.comm) return INVALID_ARGUMENT;
  op.generation = gpuless->site[op.site].generation;
  int e = gpuless_gate(op.site, op.comm->id, &op.held);
  if (!e && (op.comm->aborted || op.comm->destroyed)) e = INVALID_USAGE;
  if (!e && depth > 0) e = enqueue(&op);
  else if (!e) launch(&op);
  if (e && depth > 0 && !group_error) group_error = e;
  return e;
}

API result ncclGroupStart(void) {
  int e = gpuless_gate(SITE_ncclGroupStart, GPULESS_ANY_COMM, NULL);
  if (!e) depth++;
  return e;
}

API result ncclGroupEnd(void) {
  if (depth == 0) return INVALID_USAGE;
  int e = gpuless_gate(SITE_ncclGroupEnd, GPULESS_ANY_COMM, NULL);
  if (e && !group_error) group_error = e;
  if (--depth > 0) return SUCCESS;
  e = group_error;
  for (int i = 0; i < queue_size && !e; i++) launch(&queue[i]);
  queue_size = group_error = 0;
  return e;
}
API result ncclGroupSimulateEnd(void *info) { return SUCCESS; }

static size_t size_of(int type) {
  static const size_t size[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type >= 0 && type < 12 ? size[type] : 1;
}

#define OP(name, from, to, count, type, root_or_peer)                          \
  submit((struct gpuless_op){.site = SITE_##name, .comm = c, .send = from,       \
                             .recv = to, .bytes = (count) * size_of(type),       \
                             .peer = root_or_peer, .stream = stream})

API result ncclAllReduce(const void *s, void *r, size_t n, int t, int op, comm_t c, void *stream) {
  return OP(ncclAllReduce, s, r, n, t, -1);
}
API result ncclBroadcast(const void *s, void *r, size_t n, int t, int root, comm_t c, void *stream) {
  return OP(ncclBroadcast, s, r, n, t, root);
}
API result ncclBcast(void *b, size_t n, int t, int root, comm_t c, void *stream) {
  return OP(ncclBcast, b, b, n, t, root);
}
API result ncclReduce(const void *s, void *r, size_t n, int t, int op, int root, comm_t c, void *stream) {
  return OP(ncclReduce, s, r, n, t, root);
}
API result ncclAllGather(const void *s, void *r, size_t n, int t, comm_t c, void *stream) {
  return OP(ncclAllGather, s, r, n, t, -1);
}
API result ncclReduceScatter(const void *s, void *r, size_t n, int t, int op, comm_t c, void *stream) {
  return OP(ncclReduceScatter, s, r, n, t, -1);
}
API result ncclAlltoAll(const void *s, void *r, size_t n, int t, comm_t c, void *stream) {
  return OP(ncclAlltoAll, s, r, n, t, -1);
}
API result ncclGather(const void *s, void *r, size_t n, int t, int root, comm_t c, void *stream) {
  return OP(ncclGather, s, r, n, t, root);
}
API result ncclScatter(const void *s, void *r, size_t n, int t, int root, comm_t c, void *stream) {
  return OP(ncclScatter, s, r, n, t, root);
}
API result ncclSend(const void *s, size_t n, int t, int peer, comm_t c, void *stream) {
  return OP(ncclSend, s, NULL, n, t, peer);
}
API result ncclRecv(void *r, size_t n, int t, int peer, comm_t c, void *stream) {
  return OP(ncclRecv, NULL, r, n, t, peer);
}

/* ---- for the probes, by ctypes ---------------------------------------- */

API int gpuless_group_depth(void) { return depth; } /* of the calling thread */
API int gpuless_comm_count(void) { return comm_count; }
API int gpuless_comm_state(int id) { /* 0 live, 1 aborted, 2 destroyed, -1 none */
  if (id < 0 || id >= comm_count) return -1;
  return comms[id]->aborted ? 1 : comms[id]->destroyed ? 2 : 0;
}
