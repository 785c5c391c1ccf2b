/* Imitated CUDA: streams, and whether a graph is captured from one. */
#define _GNU_SOURCE
#include <stddef.h>

#include <cuda_runtime_api.h>

#include <stdlib.h>

#include "device.h"
#include "stream.h"

static int comm_of(struct stream *s) { return s ? *stream_comm(s) : GPULESS_ANY_COMM; }

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority) {
  int e = cuda_gate(SITE_cudaStreamCreateWithPriority, GPULESS_ANY_COMM);
  if (e) return e;
  *s = (cudaStream_t)stream_new(device_current(), !(flags & cudaStreamNonBlocking), priority);
  if (!*s) return cuda_done(cudaErrorMemoryAllocation);
  __atomic_add_fetch(&gpuless->streams, 1, __ATOMIC_RELAXED);
  return cudaSuccess;
}
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) {
  return cudaStreamCreateWithPriority(s, flags, 0);
}
API cudaError_t cudaStreamCreate(cudaStream_t *s) { return cudaStreamCreateWithPriority(s, 0, 0); }

API cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  if ((size_t)handle <= 2) return cuda_done(cudaErrorInvalidResourceHandle);
  struct stream *s = stream_of(handle);
  int e = cuda_gate(SITE_cudaStreamDestroy, comm_of(s));
  if (e) return e;
  if (!s) return cuda_done(gpuless_misuse("cudaStreamDestroy", cudaErrorContextIsDestroyed));
  stream_end(s);
  __atomic_sub_fetch(&gpuless->streams, 1, __ATOMIC_RELAXED);
  return cudaSuccess;
}

API cudaError_t cudaStreamGetPriority(cudaStream_t handle, int *p) {
  struct stream *s = stream_of(handle);
  if (!s) return cuda_done(gpuless_misuse("cudaStreamGetPriority", cudaErrorInvalidResourceHandle));
  *p = stream_priority(s);
  return cudaSuccess;
}

/* What a call that looks at a stream's progress returns before it looks. */
static int look(enum gpuless_site site, const char *name, struct stream *s) {
  int e = cuda_gate(site, comm_of(s));
  if (e) return e;
  if (!s) return cuda_done(gpuless_misuse(name, cudaErrorInvalidResourceHandle));
  return *stream_capturing(s) ? cuda_done(cudaErrorStreamCaptureUnsupported) : 0;
}

API cudaError_t cudaStreamQuery(cudaStream_t handle) {
  struct stream *s = stream_of(handle);
  int e = look(SITE_cudaStreamQuery, "cudaStreamQuery", s);
  if (e) return e;
  return stream_is_idle(s) ? cudaSuccess : cudaErrorNotReady;
}
API cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  struct stream *s = stream_of(handle);
  int e = look(SITE_cudaStreamSynchronize, "cudaStreamSynchronize", s);
  if (e) return e;
  struct marker *end = stream_mark(s);
  marker_wait(end);
  marker_drop(end);
  return cuda_alive();
}

struct call {
  cudaHostFn_t function;
  void *data;
};

static void run_call(void *argument) {
  struct call c = *(struct call *)argument;
  free(argument);
  c.function(c.data);
}

API cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void *data) {
  struct stream *s = stream_of(handle);
  int e = cuda_alive();
  if (e) return e;
  if (!s) return cuda_done(gpuless_misuse("cudaLaunchHostFunc", cudaErrorInvalidResourceHandle));
  struct call *c = malloc(sizeof *c);
  if (!c) return cuda_done(cudaErrorMemoryAllocation);
  *c = (struct call){function, data};
  return cuda_done(stream_submit(s, run_call, c) ? cudaErrorMemoryAllocation : cudaSuccess);
}

/* ---- capture: begun and ended, but nothing is recorded -------------------- */

API cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode) {
  struct stream *s = stream_of(handle);
  if ((size_t)handle <= 1 || !s) return cuda_done(cudaErrorStreamCaptureUnsupported);
  *stream_capturing(s) = 1;
  return cudaSuccess;
}
API cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph) {
  struct stream *s = stream_of(handle);
  if (!s || !*stream_capturing(s)) return cuda_done(cudaErrorIllegalState);
  *stream_capturing(s) = 0;
  *graph = NULL;
  return cuda_done(cudaErrorNotSupported); /* there is no graph to run later */
}
API cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *c) {
  struct stream *s = stream_of(handle);
  if (!s) return cuda_done(gpuless_misuse("cudaStreamIsCapturing", cudaErrorInvalidResourceHandle));
  *c = *stream_capturing(s) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
API cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *m) { return cudaSuccess; }

/* Its arguments grew with CUDA 13; only the first three matter here, and the old and the new symbols are
 * provided whatever the headers call it. */
#undef cudaStreamGetCaptureInfo
#undef cudaStreamGetCaptureInfo_v2
API cudaError_t gpuless_capture_info(cudaStream_t handle, enum cudaStreamCaptureStatus *c,
                                     unsigned long long *id) {
  if (id) *id = 1;
  return cudaStreamIsCapturing(handle, c);
}
__asm__(".globl cudaStreamGetCaptureInfo\n.set cudaStreamGetCaptureInfo, gpuless_capture_info\n"
        ".globl cudaStreamGetCaptureInfo_v2\n.set cudaStreamGetCaptureInfo_v2, gpuless_capture_info\n"
        ".globl cudaStreamGetCaptureInfo_v3\n.set cudaStreamGetCaptureInfo_v3, gpuless_capture_info\n");
