/* Streams: each has a thread of its own that runs what was enqueued, in order. */
#ifndef GPULESS_STREAM_H
#define GPULESS_STREAM_H

#include "marker.h"

struct stream;

typedef void stream_run(void *argument); /* frees its argument */

/* `handle` as CUDA's callers have it: 0, 1 and 2 are the default stream of the current device.
 * NULL: no live stream has this handle. */
struct stream *stream_of(void *handle);
struct stream *stream_new(int device, int blocking, int priority);
/* The handle is dead at once; what is enqueued still runs, as cudaStreamDestroy documents. */
void stream_end(struct stream *s);

/* Appends work. 0, or -1 when there is no memory. */
int stream_submit(struct stream *s, stream_run *run, void *argument);
/* The end of all work enqueued so far (a new reference); NULL when nothing is left to run. */
struct marker *stream_mark(struct stream *s);
/* Later work of this stream waits for the marker. */
int stream_follow(struct stream *s, struct marker *m);
int stream_is_idle(struct stream *s);
int stream_all_idle(void);
/* Waits for all streams of a device; -1: of all devices. */
void stream_wait_all(int device);

int stream_device(const struct stream *s);
int stream_priority(const struct stream *s);
int *stream_comm(struct stream *s);      /* the last communicator used on it: injections into one world only */
int *stream_capturing(struct stream *s); /* nonzero while a graph is captured from it */

#endif
