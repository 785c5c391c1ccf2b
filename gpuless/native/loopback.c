/* A transport without peers, for probes: each rank sees its own share and nothing else. */
#include <string.h>

#include "nccl.h"
static void copy(void *to, const void *from, size_t bytes) {
  if (to && from && to != from && bytes) memmove(to, from, bytes);
}

void loopback_move(const struct gpuless_op *op) {
  size_t share = op->bytes, at = share * op->comm->rank;
  int is_root = op->peer == op->comm->rank;
  char *recv = op->recv;
  const char *send = op->send;
  switch (op->site) {
  case SITE_ncclAllReduce: copy(recv, send, share); break;
  case SITE_ncclAllGather: copy(recv + at, send, share); break;
  case SITE_ncclReduceScatter: copy(recv, send + at, share); break;
  case SITE_ncclAlltoAll: copy(recv + at, send + at, share); break;
  case SITE_ncclReduce:
  case SITE_ncclBroadcast: if (is_root) copy(recv, send, share); break;
  case SITE_ncclGather: if (is_root) copy(recv + at, send, share); break;
  case SITE_ncclScatter: if (is_root) copy(recv, send + at, share); break;
  default: break; /* send, recv: no peer to exchange with */
  }
}
