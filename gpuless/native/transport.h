/* How the data of an NCCL operation moves. One implementation is linked in. */
#ifndef GPULESS_TRANSPORT_H
#define GPULESS_TRANSPORT_H

#include <stddef.h>

#include "control.h"

struct gpuless_comm {
  int id; /* order of creation in this process, from 0 */
  int ranks, rank, device;
  int aborted, destroyed;
};

/* One collective or point-to-point operation, as it was given to NCCL. */
struct gpuless_op {
  enum gpuless_site site;
  struct gpuless_comm *comm;
  const void *send;
  void *recv;
  size_t bytes; /* of one rank's share, as NCCL counts it for this operation */
  int peer;     /* root or peer, -1 where there is none */
  void *stream;
  int held; /* ACTION_HOLD: taken, never finished */
  uint32_t generation;
};

void gpuless_move(const struct gpuless_op *op);

#endif
