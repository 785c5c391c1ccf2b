/* Imitated CUDA: events. An event holds the marker of its last recording. */
#define _GNU_SOURCE
#include <stddef.h>

#include <cuda_runtime_api.h>

#include <pthread.h>
#include <stdlib.h>

#include "device.h"
#include "stream.h"

#define ALIVE 0x45564e54u /* "EVNT" */

struct event { /* kept after its end in a list for new ones: its mark of life is what tells a dead handle */
  unsigned alive;
  int comm; /* of its stream when it was recorded */
  int captured;
  struct marker *recorded;
  struct event *next;
};

static struct event *unused, **unused_end = &unused;
static int unused_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* A handle comes back only after many others, so that a dead one is not taken for the next one made. */
#define KEPT_DEAD 4096

static struct event *new_event(void) {
  pthread_mutex_lock(&lock);
  struct event *e = unused_count > KEPT_DEAD ? unused : NULL;
  if (e) {
    unused = e->next;
    unused_count--;
  }
  pthread_mutex_unlock(&lock);
  if (!e) e = malloc(sizeof *e);
  if (e) *e = (struct event){ALIVE, GPULESS_ANY_COMM, 0, NULL, NULL};
  return e;
}

static void end_event(struct event *e) {
  pthread_mutex_lock(&lock);
  e->alive = 0;
  marker_drop(e->recorded);
  e->recorded = NULL;
  e->next = NULL;
  *unused_end = e;
  unused_end = &e->next;
  unused_count++;
  pthread_mutex_unlock(&lock);
}

static struct marker *recorded(struct event *e) {
  pthread_mutex_lock(&lock);
  struct marker *m = marker_keep(e->recorded);
  pthread_mutex_unlock(&lock);
  return m;
}

static struct event *event_of(cudaEvent_t handle) {
  struct event *e = (struct event *)handle;
  return e && e->alive == ALIVE ? e : NULL;
}

/* What a call on an event returns before it does anything. */
static int enter(enum gpuless_site site, const char *name, struct event *event, int comm) {
  int e = cuda_gate(site, comm);
  if (e) return e;
  return event ? 0 : cuda_done(gpuless_misuse(name, cudaErrorInvalidResourceHandle));
}
static int comm_of(const struct event *e) { return e ? e->comm : GPULESS_ANY_COMM; }

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
  int error = cuda_gate(SITE_cudaEventCreateWithFlags, GPULESS_ANY_COMM);
  if (error) return error;
  *e = (cudaEvent_t)new_event();
  return cuda_done(*e ? cudaSuccess : cudaErrorMemoryAllocation);
}
API cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }

API cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream, unsigned flags) {
  struct event *event = event_of(handle);
  struct stream *s = stream_of(stream);
  int error = enter(SITE_cudaEventRecord, "cudaEventRecord", event, s ? *stream_comm(s) : GPULESS_ANY_COMM);
  if (error) return error;
  if (!s) return cuda_done(gpuless_misuse("cudaEventRecord", cudaErrorInvalidResourceHandle));
  struct marker *m = stream_mark(s);
  if (!m && (m = marker_new())) marker_finish(m); /* the time of now */
  pthread_mutex_lock(&lock);
  marker_drop(event->recorded);
  event->recorded = m;
  event->comm = *stream_comm(s);
  event->captured = *stream_capturing(s);
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}
API cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) { return cudaEventRecordWithFlags(e, s, 0); }

API cudaError_t cudaEventQuery(cudaEvent_t handle) {
  struct event *event = event_of(handle);
  int error = enter(SITE_cudaEventQuery, "cudaEventQuery", event, comm_of(event));
  if (error) return error;
  if (event->captured) return cuda_done(cudaErrorCapturedEvent);
  struct marker *m = recorded(event);
  int finished = marker_is_finished(m);
  marker_drop(m);
  return finished ? cudaSuccess : cudaErrorNotReady;
}
API cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  struct event *event = event_of(handle);
  int error = enter(SITE_cudaEventSynchronize, "cudaEventSynchronize", event, comm_of(event));
  if (error) return error;
  if (event->captured) return cuda_done(cudaErrorCapturedEvent);
  struct marker *m = recorded(event);
  marker_wait(m);
  marker_drop(m);
  return cuda_alive();
}
API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t handle, unsigned flags) {
  struct event *event = event_of(handle);
  struct stream *s = stream_of(stream);
  int error = enter(SITE_cudaStreamWaitEvent, "cudaStreamWaitEvent", event,
                    s ? *stream_comm(s) : GPULESS_ANY_COMM);
  if (error) return error;
  if (!s) return cuda_done(gpuless_misuse("cudaStreamWaitEvent", cudaErrorInvalidResourceHandle));
  struct marker *m = recorded(event);
  error = stream_follow(s, m) ? cudaErrorMemoryAllocation : cudaSuccess;
  marker_drop(m);
  return cuda_done(error);
}
API cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  struct event *event = event_of(handle);
  int error = enter(SITE_cudaEventDestroy, "cudaEventDestroy", event, comm_of(event));
  if (!error) end_event(event);
  return error;
}

#undef cudaEventElapsedTime
API cudaError_t gpuless_elapsed_time(float *ms, cudaEvent_t a, cudaEvent_t b) {
  struct event *from = event_of(a), *to = event_of(b);
  if (!from || !to) return cuda_done(cudaErrorInvalidResourceHandle);
  struct marker *first = recorded(from), *last = recorded(to);
  int ready = marker_is_finished(first) && marker_is_finished(last);
  if (ready) *ms = (marker_time(last) - marker_time(first)) / 1e6f;
  marker_drop(first);
  marker_drop(last);
  return ready ? cudaSuccess : cudaErrorNotReady;
}
__asm__(".globl cudaEventElapsedTime\n.set cudaEventElapsedTime, gpuless_elapsed_time\n"
        ".globl cudaEventElapsedTime_v2\n.set cudaEventElapsedTime_v2, gpuless_elapsed_time\n");
