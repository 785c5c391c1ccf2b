/* Imitated NCCL: operations and groups.
 *
 * As documented for NCCL: between ncclGroupStart and the outermost ncclGroupEnd of a thread nothing is launched,
 * whatever communicator it belongs to; a call that failed inside a group makes that ncclGroupEnd fail. All
 * operations of a group on one communicator are one launch. Launches of a communicator run in the order in which
 * they were made, on whatever streams ("strong streams" in ncclLaunchPrepare, enqueue.cc). */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "nccl.h"
#include "stream.h"

struct group {
  int depth;
  result error;
  int count, room;
  struct gpuless_op *ops;
  int join_count, join_room;
  comm_t *joins;
};

static __thread struct group group;

int group_depth(void) { return group.depth; }
void group_fail(result error) {
  if (group.depth > 0 && !group.error) group.error = error;
}

static void *grown(void *array, int count, int *room, size_t size) {
  if (count < *room) return array;
  *room = *room ? 2 * *room : 16;
  void *made = realloc(array, *room * size);
  if (!made) abort();
  return made;
}

result group_join(comm_t c) {
  group.joins = grown(group.joins, group.join_count, &group.join_room, sizeof *group.joins);
  group.joins[group.join_count++] = c;
  return SUCCESS;
}

/* ---- one launch ------------------------------------------------------- */

struct launch {
  comm_t comm;
  struct marker *before, *end; /* before: of the communicator's last launch */
  int count;
  struct gpuless_op ops[];
};

static void wait_while_held(const struct launch *l) {
  for (int i = 0; i < l->count; i++)
    while (l->ops[i].held && !l->comm->stopped && gpuless_is_held(l->ops[i].site, l->ops[i].generation))
      gpuless_nap();
}

static void run_launch(void *argument) {
  struct launch *l = argument;
  marker_wait(l->before);
  wait_while_held(l);
  if (!l->comm->stopped && !gpuless->sticky) {
    if (l->comm->segment) collectives_run(l->comm, l->ops, l->count);
    else
      for (int i = 0; i < l->count; i++) loopback_move(&l->ops[i]);
  }
  marker_finish(l->end);
  marker_drop(l->end);
  marker_drop(l->before);
  free(l);
}

static struct launch *new_launch(comm_t c, const struct gpuless_op *ops, int count) {
  int own = 0;
  for (int i = 0; i < count; i++) own += ops[i].comm == c;
  struct launch *l = malloc(sizeof *l + own * sizeof *ops);
  if (!l) abort();
  l->comm = c;
  l->count = 0;
  for (int i = 0; i < count; i++)
    if (ops[i].comm == c) l->ops[l->count++] = ops[i];
  return l;
}

/* The streams of its operations other than the first wait for the launch, and it for them. */
static void launch(comm_t c, const struct gpuless_op *ops, int count) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  struct launch *l = new_launch(c, ops, count);
  struct stream *first = l->ops[0].stream;
  struct marker *end = marker_new();
  pthread_mutex_lock(&lock);
  for (int i = 0; i < l->count; i++) {
    struct stream *s = l->ops[i].stream;
    *stream_comm(s) = c->id;
    struct marker *m = s == first ? NULL : stream_mark(s);
    stream_follow(first, m);
    marker_drop(m);
  }
  l->before = c->last;
  l->end = marker_keep(end);
  c->last = marker_keep(end);
  int launched = l->count;
  struct stream **others = malloc(launched * sizeof *others);
  for (int i = 0; others && i < launched; i++) others[i] = l->ops[i].stream;
  if (stream_submit(first, run_launch, l)) abort();
  for (int i = 0; others && i < launched; i++)
    if (others[i] != first) stream_follow(others[i], end);
  pthread_mutex_unlock(&lock);
  free(others);
  marker_drop(end);
  __atomic_add_fetch(&gpuless->launched, launched, __ATOMIC_RELAXED);
}

/* One launch for each communicator, in the order of their first operations. */
static void launch_all(const struct gpuless_op *ops, int count) {
  for (int i = 0; i < count; i++) {
    int seen = 0;
    for (int j = 0; j < i && !seen; j++) seen = ops[j].comm == ops[i].comm;
    if (!seen) launch(ops[i].comm, &ops[i], count - i);
  }
}

/* ---- non-blocking communicators --------------------------------------- */

struct later {
  int count;
  struct gpuless_op *ops;
};

static result run_later(comm_t c, void *argument) {
  struct later *l = argument;
  launch_all(l->ops, l->count);
  for (int i = 0; i < l->count; i++)
    if (l->ops[i].comm != c) __atomic_store_n(&l->ops[i].comm->state, SUCCESS, __ATOMIC_SEQ_CST);
  free(l->ops);
  free(l);
  return SUCCESS;
}

/* Launched by a thread, after the call has returned ncclInProgress: groupLaunchNonBlocking in NCCL's group.cc. */
static result launch_later(const struct gpuless_op *ops, int count, comm_t first) {
  struct later *l = malloc(sizeof *l);
  struct gpuless_op *copy = malloc(count * sizeof *copy);
  if (!l || !copy) abort();
  *l = (struct later){count, memcpy(copy, ops, count * sizeof *copy)};
  for (int i = 0; i < count; i++) ops[i].comm->state = IN_PROGRESS;
  return comm_run(first, run_later, l);
}

/* Whether a connection has to be made first; each direction to each peer has its own. */
static int connects(const struct gpuless_op *op) {
  if (op->site != SITE_ncclSend && op->site != SITE_ncclRecv) return 0;
  uint64_t *known = op->site == SITE_ncclSend ? &op->comm->sends_to : &op->comm->receives_from;
  uint64_t peer = op->peer < 64 ? 1ull << op->peer : 0;
  int is_new = !(*known & peer);
  *known |= peer;
  return is_new;
}

/* ncclGroupEndInternal in group.cc: since 2.23.4 every launch of a non-blocking communicator has a thread, before
 * only one that connects. */
static result launch_now_or_later(const struct gpuless_op *ops, int count) {
  comm_t waits = NULL;
  for (int i = 0; i < count; i++)
    if (!ops[i].comm->blocking && (connects(&ops[i]) || FAKE_NCCL_VERSION >= 22304)) waits = ops[i].comm;
  if (waits) return launch_later(ops, count, waits);
  launch_all(ops, count);
  return SUCCESS;
}

/* ---- groups ----------------------------------------------------------- */

static result enqueue(const struct gpuless_op *op) {
  group.ops = grown(group.ops, group.count, &group.room, sizeof *group.ops);
  group.ops[group.count++] = *op;
  __atomic_add_fetch(&gpuless->queued, 1, __ATOMIC_RELAXED);
  return SUCCESS;
}

static result check_operation(struct gpuless_op *op, const char *name) {
  result r = comm_check(op->comm, name);
  if (r) return r;
  if (op->comm->stopped || op->comm->finalized) return INVALID_USAGE;
  if (gpuless->sticky) return CUDA_ERROR;
  if (!type_size(op->type)) return INVALID_ARGUMENT;
  int needs_peer = op->site == SITE_ncclSend || op->site == SITE_ncclRecv || op->peer != -1;
  if (needs_peer && (op->peer < 0 || op->peer >= op->comm->ranks)) return INVALID_ARGUMENT;
  r = premul_of(op->comm, op->reduction, &op->premul);
  if (r) return r;
  op->stream = stream_of(op->stream);
  return op->stream ? SUCCESS : gpuless_misuse(name, CUDA_ERROR);
}

static result submit(struct gpuless_op op, const char *name) {
  if (!op.comm) return INVALID_ARGUMENT;
  op.generation = gpuless->site[op.site].generation;
  result e = gpuless_gate(op.site, op.comm->id, &op.held);
  if (!e) e = check_operation(&op, name);
  if (!e) e = group.depth > 0 ? enqueue(&op) : launch_now_or_later(&op, 1);
  if (e && e != IN_PROGRESS) group_fail(e);
  return e;
}

API result ncclGroupStart(void) {
  int e = gpuless_gate(SITE_ncclGroupStart, GPULESS_ANY_COMM, NULL);
  if (!e) group.depth++;
  return e;
}

/* Waits for the calls that a group has collected, unless all are on non-blocking communicators. */
static result finish_joins(void) {
  result e = SUCCESS;
  int wait = 0;
  for (int i = 0; i < group.join_count; i++) wait |= group.joins[i]->blocking;
  for (int i = 0; i < group.join_count; i++) {
    comm_t c = group.joins[i];
    if (wait) marker_wait(c->job);
    if (c->state && !e) e = c->state;
  }
  return e;
}

/* A group has raw pointers to the communicators of what is queued in it; its end reads them, a failing one too. */
static void read_communicators(void) {
  for (int i = 0; i < group.count; i++)
    if (group.ops[i].comm->aborted || group.ops[i].comm->destroyed)
      group_fail(gpuless_misuse("ncclGroupEnd", INTERNAL_ERROR));
}

API result ncclGroupEnd(void) {
  if (group.depth == 0) return INVALID_USAGE;
  int e = gpuless_gate(SITE_ncclGroupEnd, GPULESS_ANY_COMM, NULL);
  if (e) group_fail(e);
  if (group.depth == 1) read_communicators();
  if (--group.depth > 0) return SUCCESS;
  int joined = finish_joins();
  e = group.error ? group.error : joined;
  if (!e && group.count) e = launch_now_or_later(group.ops, group.count);
  group.count = group.join_count = group.error = 0;
  return e;
}
API result ncclGroupSimulateEnd(void *info) { return SUCCESS; }

/* ---- operations ------------------------------------------------------- */

#define OP(name, from, to, n, dtype, how, root_or_peer)                        \
  submit((struct gpuless_op){.site = SITE_##name, .comm = c, .send = from,       \
                             .recv = to, .count = n, .bytes = (n) * type_size(dtype), \
                             .type = dtype, .reduction = how,                    \
                             .peer = root_or_peer, .stream = stream}, #name)

API result ncclAllReduce(const void *s, void *r, size_t n, int t, int op, comm_t c, void *stream) {
  return OP(ncclAllReduce, s, r, n, t, op, -1);
}
API result ncclBroadcast(const void *s, void *r, size_t n, int t, int root, comm_t c, void *stream) {
  return OP(ncclBroadcast, s, r, n, t, 0, root);
}
API result ncclBcast(void *b, size_t n, int t, int root, comm_t c, void *stream) {
  return OP(ncclBcast, b, b, n, t, 0, root);
}
API result ncclReduce(const void *s, void *r, size_t n, int t, int op, int root, comm_t c, void *stream) {
  return OP(ncclReduce, s, r, n, t, op, root);
}
API result ncclAllGather(const void *s, void *r, size_t n, int t, comm_t c, void *stream) {
  return OP(ncclAllGather, s, r, n, t, 0, -1);
}
API result ncclReduceScatter(const void *s, void *r, size_t n, int t, int op, comm_t c, void *stream) {
  return OP(ncclReduceScatter, s, r, n, t, op, -1);
}
API result ncclAlltoAll(const void *s, void *r, size_t n, int t, comm_t c, void *stream) {
  return OP(ncclAlltoAll, s, r, n, t, 0, -1);
}
API result ncclGather(const void *s, void *r, size_t n, int t, int root, comm_t c, void *stream) {
  return OP(ncclGather, s, r, n, t, 0, root);
}
API result ncclScatter(const void *s, void *r, size_t n, int t, int root, comm_t c, void *stream) {
  return OP(ncclScatter, s, r, n, t, 0, root);
}
API result ncclSend(const void *s, size_t n, int t, int peer, comm_t c, void *stream) {
  return OP(ncclSend, s, NULL, n, t, 0, peer);
}
API result ncclRecv(void *r, size_t n, int t, int peer, comm_t c, void *stream) {
  return OP(ncclRecv, NULL, r, n, t, 0, peer);
}

/* ---- for the probes, by ctypes ---------------------------------------- */

API int gpuless_group_depth(void) { return group.depth; } /* of the calling thread */
