/* The memory that the ranks of one communicator share.
 *
 * A memfd, named by the unique id through the descriptor of the process that
 * made it. It has no name in any file system: when the last process that maps
 * it is gone, however it ended, nothing is left.
 *
 * Nothing in it is locked. A ring has one writer and one reader; each owns its
 * counters, and a counter moves only after the data. A process that is killed
 * at any moment leaves a ring that is merely never written or read again.
 */
#ifndef GPULESS_SEGMENT_H
#define GPULESS_SEGMENT_H

#include "nccl.h"

#define RING_BYTES (512u << 10) /* a power of two */
#define EAGER_BYTES (64u << 10) /* a longer message waits until its receive has begun */

enum ring_class { RING_POINT_TO_POINT, RING_COLLECTIVE, RING_CLASSES };

struct ring {
  _Alignas(64) uint64_t written; /* bytes, by the sender */
  uint64_t sent;                 /* messages begun, by the sender */
  _Alignas(64) uint64_t read;    /* bytes, by the receiver */
  uint64_t begun;                /* receives begun, by the receiver */
  _Alignas(64) char data[RING_BYTES];
};

#define SLOT_BYTES 160

/* What a rank tells in one collective call on the communicator. */
struct slot {
  uint64_t round; /* written last */
  char data[SLOT_BYTES];
};

/* Calls that all ranks make, and calls of those that are left: counted apart. */
enum exchange { EXCHANGE_ALL, EXCHANGE_REMAINING, EXCHANGES };

struct member {
  _Alignas(64) uint32_t bell; /* futex: grows when something happened that this rank may wait for */
  uint32_t sleeping;          /* threads of this rank that wait for its bell */
  uint32_t joined, left, finalized;
  uint32_t process;
  uint64_t process_start;     /* with its id: tells it from a later process of that id */
  uint64_t host;              /* hash, as NCCL's host hash */
  uint32_t bus;               /* of its device */
  uint64_t round[EXCHANGES];
  /* Rounds alternate: nobody begins round n + 2 before all have published n + 1, and so have read n. */
  struct slot slot[EXCHANGES][2];
};

/* A new segment and the unique id that names it. */
result segment_name(unique_id *id);
/* Maps the segment and waits until all ranks have; until `*stopped` at most. */
result segment_join(comm_t c, const unique_id *id);
/* `orderly`: not by an abort; it counts as finalizing, and is no loss for the others. */
void segment_leave(struct segment *s, int rank, int ranks, int orderly);
/* Waits until all ranks have finalized: "an intra-node collective call", as NCCL documents. */
void segment_finalize(comm_t c);

/* Forgets a name that nobody will use. */
void segment_forget(const unique_id *id);
/* Tells `mine` to the ranks that take part and waits for what they tell: 0 with `all[rank]` filled in for each of
 * them, -1 when the communicator was aborted or `waiting` was stopped before. `absent`: nonzero by rank; or NULL. */
int segment_exchange(comm_t c, comm_t waiting, enum exchange which, const char *absent,
                     const char mine[SLOT_BYTES], char (*all)[SLOT_BYTES]);

struct ring *segment_ring(struct segment *s, enum ring_class class, int from, int to);
struct member *segment_member(struct segment *s, int rank);
void segment_ring_bell(struct segment *s, int rank);
/* A wait: seen = segment_attend(); look again; segment_sleep(seen) if nothing was there; segment_turn_away(). */
uint32_t segment_attend(struct segment *s, int rank);
void segment_sleep(struct segment *s, int rank, uint32_t seen);
void segment_turn_away(struct segment *s, int rank);
/* Whether some peer is dead, or has left without finalizing. */
int segment_lost_peer(comm_t c);

#endif
