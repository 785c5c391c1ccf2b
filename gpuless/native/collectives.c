/* NCCL's operations, made of messages between ranks. Flat algorithms: the number of ranks on a host is small. */
#include <stdlib.h>
#include <string.h>

#include "transfer.h"

#define BLOCK_BYTES (256u << 10) /* of one rank's contribution that is reduced at once */
#define AVERAGE 4

struct batch {
  comm_t comm;
  struct transfer *items;
  int count, room;
};

static void add(struct batch *b, int sending, int peer, const void *at, size_t bytes, uint64_t tag) {
  if (b->count == b->room) {
    b->room = b->room ? 2 * b->room : 16;
    b->items = realloc(b->items, b->room * sizeof *b->items);
    if (!b->items) abort();
  }
  enum ring_class class = tag ? RING_COLLECTIVE : RING_POINT_TO_POINT;
  b->items[b->count++] = (struct transfer){
      .class = class, .peer = peer, .sending = sending, .at = (char *)at, .bytes = bytes, .tag = tag};
}

static int run(struct batch *b) {
  int stopped = transfer_all(b->comm, b->items, b->count);
  b->count = 0;
  return stopped;
}

static void copy(void *to, const void *from, size_t bytes) {
  if (to != from && bytes) memmove(to, from, bytes);
}

/* ---- without arithmetic ----------------------------------------------- */

static uint64_t tag_of(const struct gpuless_op *op) { return (uint64_t)op->site << 8 | 1; }

static void all_gather(struct batch *b, const struct gpuless_op *op) {
  char *recv = op->recv;
  for (int r = 0; r < op->comm->ranks; r++) {
    if (r == op->comm->rank) continue;
    add(b, 1, r, op->send, op->bytes, tag_of(op));
    add(b, 0, r, recv + r * op->bytes, op->bytes, tag_of(op));
  }
  copy(recv + op->comm->rank * op->bytes, op->send, op->bytes);
  run(b);
}

static void broadcast(struct batch *b, const struct gpuless_op *op) {
  if (op->comm->rank == op->peer) {
    for (int r = 0; r < op->comm->ranks; r++)
      if (r != op->peer) add(b, 1, r, op->send, op->bytes, tag_of(op));
    copy(op->recv, op->send, op->bytes);
  } else {
    add(b, 0, op->peer, op->recv, op->bytes, tag_of(op));
  }
  run(b);
}

static void all_to_all(struct batch *b, const struct gpuless_op *op) {
  int me = op->comm->rank;
  for (int r = 0; r < op->comm->ranks; r++) {
    if (r == me) continue;
    add(b, 1, r, (const char *)op->send + r * op->bytes, op->bytes, tag_of(op));
    add(b, 0, r, (char *)op->recv + r * op->bytes, op->bytes, tag_of(op));
  }
  copy((char *)op->recv + me * op->bytes, (const char *)op->send + me * op->bytes, op->bytes);
  run(b);
}

static void gather(struct batch *b, const struct gpuless_op *op) {
  if (op->comm->rank != op->peer) {
    add(b, 1, op->peer, op->send, op->bytes, tag_of(op));
  } else {
    for (int r = 0; r < op->comm->ranks; r++)
      if (r != op->peer) add(b, 0, r, (char *)op->recv + r * op->bytes, op->bytes, tag_of(op));
    copy((char *)op->recv + op->peer * op->bytes, op->send, op->bytes);
  }
  run(b);
}

static void scatter(struct batch *b, const struct gpuless_op *op) {
  if (op->comm->rank != op->peer) {
    add(b, 0, op->peer, op->recv, op->bytes, tag_of(op));
  } else {
    for (int r = 0; r < op->comm->ranks; r++)
      if (r != op->peer) add(b, 1, r, (const char *)op->send + r * op->bytes, op->bytes, tag_of(op));
    copy(op->recv, (const char *)op->send + op->peer * op->bytes, op->bytes);
  }
  run(b);
}

/* ---- reductions ------------------------------------------------------- */

/* Each rank reduces one piece of the data: which one, in elements of the send buffer. */
struct piece { size_t start, count; };

static struct piece piece_of(const struct gpuless_op *op, int rank) {
  size_t share = (op->count + op->comm->ranks - 1) / op->comm->ranks, start = share * rank;
  switch (op->site) {
  case SITE_ncclReduce: return (struct piece){0, rank == op->peer ? op->count : 0};
  case SITE_ncclReduceScatter: return (struct piece){rank * op->count, op->count};
  default:
    if (start > op->count) start = op->count;
    return (struct piece){start, start + share > op->count ? op->count - start : share};
  }
}

static size_t part(struct piece p, size_t from, size_t block) {
  size_t left = p.count > from ? p.count - from : 0;
  return left < block ? left : block;
}

static void combine(const struct gpuless_op *op, char *parts, size_t stride, size_t count) {
  int ranks = op->comm->ranks, reduction = op->reduction;
  if (reduction >= FIRST_USER_REDUCTION) reduction = 0; /* a sum of what is scaled already */
  for (int r = 1; r < ranks; r++) reduction_apply(parts, parts + r * stride, count, op->type, reduction);
  if (reduction == AVERAGE) reduction_average(parts, count, op->type, ranks);
}

/* What this rank contributes: its data, or with a user-defined reduction a copy multiplied by its scalar. */
static char *contribution(const struct gpuless_op *op) {
  if (op->reduction < FIRST_USER_REDUCTION) return (char *)op->send;
  size_t count = op->site == SITE_ncclReduceScatter ? op->count * op->comm->ranks : op->count;
  const struct premul *p = &op->premul;
  char *scaled = malloc(count * type_size(op->type) + 1);
  if (!scaled) abort();
  memcpy(scaled, op->send, count * type_size(op->type));
  reduction_scale(scaled, count, op->type, p->by_value ? p->value : reduction_scalar(p->where, p->type));
  return scaled;
}

/* Sends its part of each piece to the rank that reduces it, and reduces its own, block by block. */
static int reduce_pieces(struct batch *b, const struct gpuless_op *op, char *out) {
  int ranks = op->comm->ranks, me = op->comm->rank;
  size_t size = type_size(op->type), block = BLOCK_BYTES / size, stride = block * size, longest = 0;
  char *parts = malloc(ranks * stride), *send = contribution(op);
  if (!parts) abort();
  for (int r = 0; r < ranks; r++)
    if (piece_of(op, r).count > longest) longest = piece_of(op, r).count;
  int stopped = 0;
  for (size_t from = 0; from < longest && !stopped; from += block) {
    struct piece mine = piece_of(op, me);
    size_t own = part(mine, from, block);
    for (int r = 0; r < ranks; r++) {
      struct piece p = piece_of(op, r);
      size_t n = part(p, from, block);
      if (r != me && n) add(b, 1, r, send + (p.start + from) * size, n * size, tag_of(op));
      if (r != me && own) add(b, 0, r, parts + r * stride, own * size, tag_of(op));
    }
    if (own) memcpy(parts + me * stride, send + (mine.start + from) * size, own * size);
    stopped = run(b);
    if (!stopped && own) combine(op, parts, stride, own);
    if (!stopped && own) memcpy(out + from * size, parts, own * size);
  }
  if (send != op->send) free(send);
  free(parts);
  return stopped;
}

static void all_reduce(struct batch *b, const struct gpuless_op *op) {
  size_t size = type_size(op->type);
  int me = op->comm->rank;
  struct piece mine = piece_of(op, me);
  if (reduce_pieces(b, op, (char *)op->recv + mine.start * size)) return;
  for (int r = 0; r < op->comm->ranks; r++) {
    struct piece p = piece_of(op, r);
    if (r == me) continue;
    if (mine.count) add(b, 1, r, (char *)op->recv + mine.start * size, mine.count * size, tag_of(op) + 1);
    if (p.count) add(b, 0, r, (char *)op->recv + p.start * size, p.count * size, tag_of(op) + 1);
  }
  run(b);
}

/* ---- one launch ------------------------------------------------------- */

static int is_point_to_point(const struct gpuless_op *op) {
  return op->site == SITE_ncclSend || op->site == SITE_ncclRecv;
}

static void collective(struct batch *b, const struct gpuless_op *op) {
  switch (op->site) {
  case SITE_ncclAllReduce: all_reduce(b, op); break;
  case SITE_ncclReduce:
  case SITE_ncclReduceScatter: reduce_pieces(b, op, op->recv); break;
  case SITE_ncclAllGather: all_gather(b, op); break;
  case SITE_ncclBroadcast:
  case SITE_ncclBcast: broadcast(b, op); break;
  case SITE_ncclAlltoAll: all_to_all(b, op); break;
  case SITE_ncclGather: gather(b, op); break;
  case SITE_ncclScatter: scatter(b, op); break;
  default: break;
  }
}

void collectives_run(comm_t c, const struct gpuless_op *ops, int count) {
  struct batch b = {.comm = c};
  for (int i = 0; i < count && !c->stopped; i++)
    if (!is_point_to_point(&ops[i])) collective(&b, &ops[i]);
  for (int i = 0; i < count; i++) {
    const struct gpuless_op *op = &ops[i];
    if (!is_point_to_point(op)) continue;
    int sending = op->site == SITE_ncclSend;
    add(&b, sending, op->peer, sending ? op->send : op->recv, op->bytes, 0);
  }
  if (!c->stopped) run(&b);
  free(b.items);
}
