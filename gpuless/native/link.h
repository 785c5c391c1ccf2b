/* The time that long messages take on a link of GPULESS_LINK GB/s, for which this host's processors do nothing: where
 * there is a device, its own engines copy. */
#ifndef GPULESS_LINK_H
#define GPULESS_LINK_H

#include "transfer.h"

/* How much of a message is really moved: all of it where no link is imitated, else the first EAGER_BYTES. */
size_t link_moved(const struct transfer *t);
/* Sleeps until the link has carried these messages, or `c` is stopped. */
void link_carry(comm_t c, const struct transfer *transfers, int count);

#endif
