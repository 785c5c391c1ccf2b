/* What the imitated streams, events and communicators know of each other. */
#ifndef GPULESS_DEVICE_H
#define GPULESS_DEVICE_H

#include "control.h"

/* Unfinished work: an operation held on a communicator. A stream remembers the
 * last one enqueued on it, an event the one of its stream when it was recorded. */
struct gpuless_pending {
  int comm;            /* index of the communicator, -1: nothing pending */
  int site;            /* enum gpuless_site of the held operation */
  uint32_t generation; /* of the injection that holds it */
};

#define GPULESS_NOTHING_PENDING ((struct gpuless_pending){-1, 0, 0})

int gpuless_is_pending(struct gpuless_pending p); /* fakenccl.c */
void gpuless_hold_stream(void *stream, struct gpuless_pending p); /* fakecuda.c */

#endif
