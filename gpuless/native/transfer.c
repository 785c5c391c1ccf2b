#define _GNU_SOURCE
#include "transfer.h"

#include <stdlib.h>
#include <string.h>

#include "futex.h"
#include "link.h"

#define STEP_BYTES (128u << 10) /* moved before the other side is told: both copy at the same time */
#define SPINS 50                /* looks before a sleep */

struct header { uint64_t bytes, tag; };

static uint64_t load(uint64_t *counter) { return __atomic_load_n(counter, __ATOMIC_ACQUIRE); }
static void store(uint64_t *counter, uint64_t value) { __atomic_store_n(counter, value, __ATOMIC_SEQ_CST); }

static void put(struct ring *r, const void *from, size_t n) {
  size_t at = r->written % RING_BYTES, first = n < RING_BYTES - at ? n : RING_BYTES - at;
  memcpy(r->data + at, from, first);
  memcpy(r->data, (const char *)from + first, n - first);
  store(&r->written, r->written + n);
}

static void peek(struct ring *r, void *to, size_t n) {
  size_t at = r->read % RING_BYTES, first = n < RING_BYTES - at ? n : RING_BYTES - at;
  memcpy(to, r->data + at, first);
  memcpy((char *)to + first, r->data, n - first);
}

static size_t smallest(size_t a, size_t b, size_t c) {
  size_t least = a < b ? a : b;
  return least < c ? least : c;
}

/* Both return whether anything moved. */
static int step_send(struct ring *r, struct transfer *t) {
  size_t room = RING_BYTES - (r->written - load(&r->read));
  if (!t->begun) {
    if (room < sizeof(struct header)) return 0;
    t->begun = 1;
    t->number = r->sent++;
    put(r, &(struct header){t->bytes, t->tag}, sizeof(struct header));
    t->finished = !t->left;
    return 1;
  }
  if (t->bytes > EAGER_BYTES && load(&r->begun) <= t->number) return 0;
  size_t n = smallest(t->left, room, STEP_BYTES);
  if (!n) return 0;
  put(r, t->at, n);
  t->at += n;
  t->left -= n;
  t->finished = !t->left;
  return 1;
}

static int step_receive(struct ring *r, struct transfer *t) {
  if (!t->begun) {
    t->begun = 1;
    store(&r->begun, r->begun + 1);
    return 1;
  }
  size_t there = load(&r->written) - r->read;
  if (!t->has_header) {
    struct header h;
    if (there < sizeof h) return 0;
    peek(r, &h, sizeof h);
    if (h.bytes != t->bytes || h.tag != t->tag) return 0; /* a mismatch hangs, as NCCL's does */
    store(&r->read, r->read + sizeof h);
    t->has_header = 1;
    t->finished = !t->left;
    return 1;
  }
  size_t n = smallest(t->left, there, STEP_BYTES);
  if (!n) return 0;
  peek(r, t->at, n);
  store(&r->read, r->read + n);
  t->at += n;
  t->left -= n;
  t->finished = !t->left;
  return 1;
}

static int step(comm_t c, struct transfer *t) {
  int from = t->sending ? c->rank : t->peer, to = t->sending ? t->peer : c->rank;
  struct ring *r = segment_ring(c->segment, t->class, from, to);
  int moved = t->sending ? step_send(r, t) : step_receive(r, t);
  if (moved) segment_ring_bell(c->segment, t->peer);
  return moved;
}

/* The first unfinished message of each ring makes a step. */
struct pass { int moved, unfinished; };

static struct pass one_pass(comm_t c, struct transfer *transfers, int count, uint32_t *claimed, uint32_t number) {
  struct pass pass = {0, 0};
  for (int i = 0; i < count; i++) {
    struct transfer *t = &transfers[i];
    uint32_t *claim = &claimed[(t->class * 2 + t->sending) * c->ranks + t->peer];
    if (t->finished || *claim == number) continue;
    *claim = number;
    pass.moved += step(c, t);
    pass.unfinished += !t->finished;
  }
  return pass;
}

/* Looks again after telling the peers that this rank is about to sleep: no bell is lost. */
static struct pass pass_or_sleep(comm_t c, struct transfer *transfers, int count, uint32_t *claimed,
                                 uint32_t number) {
  uint32_t seen = segment_attend(c->segment, c->rank);
  struct pass pass = one_pass(c, transfers, count, claimed, number);
  if (!pass.moved && pass.unfinished && !c->stopped) segment_sleep(c->segment, c->rank, seen);
  segment_turn_away(c->segment, c->rank);
  return pass;
}

int transfer_all(comm_t c, struct transfer *transfers, int count) {
  uint32_t *claimed = calloc(4 * c->ranks, sizeof *claimed);
  if (!claimed) abort();
  for (int i = 0; i < count; i++) transfers[i].left = link_moved(&transfers[i]);
  int idle = 0;
  struct pass pass = {0, 1};
  for (uint32_t number = 1; pass.unfinished && !c->stopped; number++) {
    if (idle < SPINS) pass = one_pass(c, transfers, count, claimed, number);
    else pass = pass_or_sleep(c, transfers, count, claimed, number);
    idle = pass.moved ? 0 : idle + 1;
    if (!pass.moved) cpu_relax();
  }
  free(claimed);
  link_carry(c, transfers, count);
  return pass.unfinished || c->stopped ? -1 : 0;
}
