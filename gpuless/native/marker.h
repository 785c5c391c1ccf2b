/* A point in the work of a stream: finished once, waited for by any number of threads and streams.
 * NULL stands for a point that has long been passed. */
#ifndef GPULESS_MARKER_H
#define GPULESS_MARKER_H

#include <stdint.h>

struct marker;

struct marker *marker_new(void);                    /* with one reference; NULL: no memory */
struct marker *marker_keep(struct marker *m);       /* one reference more */
void marker_drop(struct marker *m);                 /* one reference less */
void marker_finish(struct marker *m);
int marker_is_finished(const struct marker *m);
void marker_wait(struct marker *m);
int marker_wait_for(struct marker *m, int milliseconds); /* whether it has finished by then */
int64_t marker_time(const struct marker *m);        /* of its end, in ns; 0 for NULL or unfinished */

#endif
