/* Messages through the rings of a segment. */
#ifndef GPULESS_TRANSFER_H
#define GPULESS_TRANSFER_H

#include "segment.h"

struct transfer {
  enum ring_class class;
  int peer, sending;
  char *at;       /* next byte to send, or to receive into */
  size_t bytes;   /* of the message: both sides have to mean the same */
  uint64_t tag;   /* of its operation: so they have to mean the same operation */
  /* the engine's */
  size_t left;
  int begun, has_header, finished;
  uint64_t number; /* of a message sent on its ring, from 0 */
};

/* Moves all messages, those of different rings at the same time, those of one ring in order. Returns when all
 * are moved: 0, or when the communicator is stopped: -1. What does not match, or whose peer is gone, never ends. */
int transfer_all(comm_t c, struct transfer *transfers, int count);

#endif
