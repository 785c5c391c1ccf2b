/* Imitated NCCL: communicators made of others: split, shrink, grow. Each meets its peers and blocks without limit
 * for one that does not come, until the new or the old communicator is aborted. */
#include <stdlib.h>
#include <string.h>

#include "segment.h"

#define NO_COLOR (-1) /* NCCL_SPLIT_NOCOLOR */
#define SHRINK_ABORT 1

/* What each rank tells: its wish, and a name that serves if it becomes the first of its group. */
struct wish {
  int color, key, has_name;
  unique_id name;
};
_Static_assert(sizeof(struct wish) <= SLOT_BYTES, "a wish fits into a slot");

struct derivation {
  comm_t parent;
  struct wish wish;
  enum exchange which;
  char *absent;   /* nonzero by rank of the parent; or NULL */
  int total;      /* ranks of a grown communicator, 0: those of the wish's color */
};

static struct derivation *new_derivation(comm_t parent, enum exchange which) {
  struct derivation *d = calloc(1, sizeof *d);
  if (!d) abort();
  d->parent = parent;
  d->which = which;
  d->wish.color = 1;
  d->wish.key = parent->rank;
  return d;
}

/* ---- the group of a color --------------------------------------------- */

static struct wish *wish_of(char (*all)[SLOT_BYTES], int rank) { return (struct wish *)all[rank]; }

static int comes_before(char (*all)[SLOT_BYTES], int a, int b) {
  int first = wish_of(all, a)->key, second = wish_of(all, b)->key;
  return first < second || (first == second && a < b);
}

/* Sets ranks and rank of the new communicator; returns the parent's rank that comes first. */
static int place(comm_t c, const struct derivation *d, char (*all)[SLOT_BYTES]) {
  int me = d->parent->rank, first = me;
  c->ranks = c->rank = 0;
  for (int r = 0; r < d->parent->ranks; r++) {
    if ((d->absent && d->absent[r]) || wish_of(all, r)->color != d->wish.color) continue;
    c->ranks++;
    c->rank += r != me && comes_before(all, r, me);
    if (comes_before(all, r, first)) first = r;
  }
  return first;
}

/* The rank that gave a name, for a communicator that grows. */
static int named(const struct derivation *d, char (*all)[SLOT_BYTES]) {
  for (int r = 0; r < d->parent->ranks; r++)
    if (wish_of(all, r)->has_name) return r;
  return d->parent->rank;
}

static int choose(comm_t c, const struct derivation *d, char (*all)[SLOT_BYTES]) {
  if (!d->total) return place(c, d, all);
  c->ranks = d->total;
  c->rank = d->parent->rank;
  return named(d, all);
}

static result meet(comm_t c, struct derivation *d) {
  char mine[SLOT_BYTES] = {0}, (*all)[SLOT_BYTES] = malloc(d->parent->ranks * sizeof *all);
  if (!all) abort();
  memcpy(mine, &d->wish, sizeof d->wish);
  result r = INTERNAL_ERROR;
  if (segment_exchange(d->parent, c, d->which, d->absent, mine, all) == 0) {
    int first = d->wish.color == NO_COLOR ? -1 : choose(c, d, all);
    if (!d->total && first != d->parent->rank) segment_forget(&d->wish.name);
    r = first < 0 ? SUCCESS : segment_join(c, &wish_of(all, first)->name);
  }
  free(all);
  return r;
}

static result derive(comm_t c, void *argument) {
  struct derivation *d = argument;
  result r = d->parent->segment ? meet(c, d) : SUCCESS;
  c->parent = NULL;
  if (d->wish.color == NO_COLOR) comm_discard(c);
  __atomic_sub_fetch(&d->parent->users, 1, __ATOMIC_SEQ_CST);
  free(d->absent);
  free(d);
  return r;
}

/* Runs the derivation for a new communicator. One of no color exists only as long as the call. */
static result start(struct derivation *d, comm_t *out, const void *config) {
  comm_t parent = d->parent;
  if (gpuless->sticky) return CUDA_ERROR;
  if (parent->segment && !d->total) {
    result r = segment_name(&d->wish.name);
    if (r) return r;
  }
  comm_t c = comm_new(parent->ranks, parent->rank, config_blocking(config, parent->blocking));
  if (!c) return SYSTEM_ERROR;
  c->device = parent->device;
  c->parent = parent;
  __atomic_add_fetch(&parent->users, 1, __ATOMIC_SEQ_CST);
  *out = d->wish.color == NO_COLOR ? NULL : c;
  return comm_created(c, out, comm_run(c, derive, d));
}

/* ---- NCCL's functions ------------------------------------------------- */

API result ncclCommSplit(comm_t parent, int color, int key, comm_t *out, void *config) {
  result e = comm_check(parent, "ncclCommSplit");
  if (!e) e = gpuless_gate(SITE_ncclCommSplit, parent->id, NULL);
  if (e) return e;
  if (color < NO_COLOR || !out) return INVALID_ARGUMENT;
  struct derivation *d = new_derivation(parent, EXCHANGE_ALL);
  d->wish.color = color;
  d->wish.key = key;
  return start(d, out, config);
}

/* Also of a communicator that has failed or was revoked. */
API result ncclCommShrink(comm_t parent, int *without, int count, comm_t *out, void *config, int flags) {
  result e = comm_check(parent, "ncclCommShrink");
  if (e == REMOTE_ERROR) e = SUCCESS;
  if (!e) e = gpuless_gate(SITE_ncclCommShrink, parent->id, NULL);
  if (e) return e;
  struct derivation *d = new_derivation(parent, EXCHANGE_REMAINING);
  d->absent = calloc(parent->ranks, 1);
  for (int i = 0; d->absent && i < count; i++)
    if (without[i] >= 0 && without[i] < parent->ranks) d->absent[without[i]] = 1;
  if (!out || !d->absent || d->absent[parent->rank]) return INVALID_ARGUMENT;
  if (flags & SHRINK_ABORT) comm_stop(parent);
  return start(d, out, config);
}

API result ncclCommGetUniqueId(comm_t c, unique_id *id) {
  result e = comm_check(c, "ncclCommGetUniqueId");
  return e || !c->segment ? e : segment_name(id);
}

/* Existing ranks give the old communicator, one of them the id; new ranks give the id and their rank. */
API result ncclCommGrow(comm_t parent, int ranks, const unique_id *id, int rank, comm_t *out, void *config) {
  if (!parent) return id ? comm_make(SITE_ncclCommGrow, out, ranks, id, rank, config) : INVALID_ARGUMENT;
  result e = comm_check(parent, "ncclCommGrow");
  if (!e) e = gpuless_gate(SITE_ncclCommGrow, parent->id, NULL);
  if (e) return e;
  if (ranks <= parent->ranks || !out) return INVALID_ARGUMENT;
  struct derivation *d = new_derivation(parent, EXCHANGE_ALL);
  d->total = ranks;
  d->wish.has_name = id != NULL;
  if (id) d->wish.name = *id;
  return start(d, out, config);
}
