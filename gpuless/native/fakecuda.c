/* An imitated CUDA runtime: two devices whose memory is host memory.
 *
 * Preloaded, so that the official wheel's libraries bind to it instead of
 * libcudart. Copies are memcpy, streams and events are tokens that remember
 * unfinished NCCL operations. Kernels do not run. Compiled against the headers
 * of the installed nvidia packages, whose macros give each function the symbol
 * name of its CUDA version (cudaGetDeviceProperties_v2 in CUDA 12).
 */
#define _GNU_SOURCE
#include <stddef.h>

#include <cuda_runtime_api.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device.h"

#define DEVICES 2
#define MEMORY (8ull << 30)
#define API __attribute__((visibility("default"))) cudaError_t CUDARTAPI

struct stream {
  struct gpuless_pending pending;
  int comm; /* last communicator used, for injections into one world only */
};
struct event {
  struct gpuless_pending pending;
  int comm;
};

static __thread int device;
static __thread cudaError_t last_error;
static struct stream default_stream = {{-1, 0, 0}, GPULESS_ANY_COMM};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static cudaError_t done(cudaError_t e) {
  if (e != cudaSuccess && e != cudaErrorNotReady) last_error = e;
  return e;
}

/* 0, 1 and 2 are CUDA's names for default streams. */
static struct stream *stream_of(void *s) {
  return (size_t)s <= 2 ? &default_stream : (struct stream *)s;
}

void gpuless_hold_stream(void *s, struct gpuless_pending p) {
  pthread_mutex_lock(&lock);
  stream_of(s)->comm = p.comm;
  if (p.site >= 0) stream_of(s)->pending = p;
  pthread_mutex_unlock(&lock);
}

static struct gpuless_pending pending_in(struct gpuless_pending *p) {
  pthread_mutex_lock(&lock);
  struct gpuless_pending copy = *p;
  pthread_mutex_unlock(&lock);
  return copy;
}

static void wait_for(struct gpuless_pending *p) {
  const struct timespec nap = {0, 5000000};
  while (gpuless_is_pending(pending_in(p))) nanosleep(&nap, NULL);
}

/* ---- devices ---------------------------------------------------------- */

API cudaGetDeviceCount(int *n) { *n = DEVICES; return cudaSuccess; }
API cudaGetDevice(int *d) { *d = device; return cudaSuccess; }
API cudaSetDevice(int d) {
  if (d < 0 || d >= DEVICES) return done(cudaErrorInvalidDevice);
  device = d;
  return cudaSuccess;
}
API cudaDriverGetVersion(int *v) { *v = CUDART_VERSION; return cudaSuccess; }
API cudaDeviceSynchronize(void) {
  return done(gpuless_gate(SITE_cudaDeviceSynchronize, GPULESS_ANY_COMM, NULL));
}
API cudaDeviceCanAccessPeer(int *can, int a, int b) { *can = a != b; return cudaSuccess; }
API cudaDeviceEnablePeerAccess(int peer, unsigned flags) { return cudaSuccess; }
API cudaDeviceGetStreamPriorityRange(int *low, int *high) {
  *low = 0;
  *high = -1;
  return cudaSuccess;
}
API cudaDeviceGetPCIBusId(char *id, int size, int d) {
  snprintf(id, size, "0000:%02x:00.0", d + 1);
  return cudaSuccess;
}
API cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int d) {
  switch ((int)a) {
  case cudaDevAttrComputeCapabilityMajor: *v = 9; break;
  case cudaDevAttrComputeCapabilityMinor: *v = 0; break;
  case cudaDevAttrMultiProcessorCount: *v = 4; break;
  case cudaDevAttrWarpSize: *v = 32; break;
  default: *v = 1;
  }
  return cudaSuccess;
}
API cudaGetDeviceProperties(struct cudaDeviceProp *p, int d) {
  memset(p, 0, sizeof *p);
  strcpy(p->name, "imitated GPU");
  p->major = 9;
  p->totalGlobalMem = MEMORY;
  p->multiProcessorCount = 4;
  p->warpSize = 32;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxThreadsPerBlock = 1024;
  p->pciBusID = d + 1;
  return cudaSuccess;
}

/* ---- memory ----------------------------------------------------------- */

API cudaMemGetInfo(size_t *free_bytes, size_t *total) {
  *free_bytes = *total = MEMORY;
  return cudaSuccess;
}
API cudaMalloc(void **p, size_t n) {
  int e = gpuless_gate(SITE_cudaMalloc, GPULESS_ANY_COMM, NULL);
  if (e) return done(e);
  return done(posix_memalign(p, 512, n) ? cudaErrorMemoryAllocation : cudaSuccess);
}
API cudaFree(void *p) { free(p); return cudaSuccess; }
API cudaHostAlloc(void **p, size_t n, unsigned flags) {
  return done(posix_memalign(p, 512, n) ? cudaErrorMemoryAllocation : cudaSuccess);
}
API cudaFreeHost(void *p) { free(p); return cudaSuccess; }
API cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind k) {
  memcpy(to, from, n);
  return cudaSuccess;
}
API cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind k,
                    cudaStream_t s) {
  int e = gpuless_gate(SITE_cudaMemcpyAsync, stream_of(s)->comm, NULL);
  if (!e) memcpy(to, from, n);
  return done(e);
}
API cudaMemset(void *p, int v, size_t n) { memset(p, v, n); return cudaSuccess; }
API cudaMemsetAsync(void *p, int v, size_t n, cudaStream_t s) {
  memset(p, v, n);
  return cudaSuccess;
}
API cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
  memset(a, 0, sizeof *a);
  a->type = cudaMemoryTypeDevice;
  a->devicePointer = (void *)p;
  return cudaSuccess;
}

/* ---- streams ---------------------------------------------------------- */

API cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority) {
  struct stream *made = malloc(sizeof *made);
  if (!made) return done(cudaErrorMemoryAllocation);
  *made = (struct stream){GPULESS_NOTHING_PENDING, GPULESS_ANY_COMM};
  *s = (cudaStream_t)made;
  return cudaSuccess;
}
API cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) {
  return cudaStreamCreateWithPriority(s, flags, 0);
}
API cudaStreamCreate(cudaStream_t *s) { return cudaStreamCreateWithPriority(s, 0, 0); }
API cudaStreamDestroy(cudaStream_t s) { return cudaSuccess; }
API cudaStreamGetPriority(cudaStream_t s, int *p) { *p = 0; return cudaSuccess; }
API cudaStreamQuery(cudaStream_t s) {
  int e = gpuless_gate(SITE_cudaStreamQuery, stream_of(s)->comm, NULL);
  if (e) return done(e);
  return gpuless_is_pending(pending_in(&stream_of(s)->pending)) ? cudaErrorNotReady
                                                                : cudaSuccess;
}
API cudaStreamSynchronize(cudaStream_t s) {
  int e = gpuless_gate(SITE_cudaStreamSynchronize, stream_of(s)->comm, NULL);
  if (!e) wait_for(&stream_of(s)->pending);
  return done(e);
}
API cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
  int error = gpuless_gate(SITE_cudaStreamWaitEvent, stream_of(s)->comm, NULL);
  if (error) return done(error);
  struct gpuless_pending p = pending_in(&((struct event *)e)->pending);
  pthread_mutex_lock(&lock);
  if (p.comm >= 0) stream_of(s)->pending = p;
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}
API cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *c) {
  *c = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
API cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *m) {
  return cudaSuccess;
}

/* Its arguments grew with CUDA 13; only the first two matter here, and both
 * the old and the new symbol are provided whatever the headers call it. */
#undef cudaStreamGetCaptureInfo
#undef cudaStreamGetCaptureInfo_v2
API gpuless_capture_info(cudaStream_t s, enum cudaStreamCaptureStatus *c) {
  *c = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
__asm__(".globl cudaStreamGetCaptureInfo\n.set cudaStreamGetCaptureInfo, gpuless_capture_info\n"
        ".globl cudaStreamGetCaptureInfo_v2\n.set cudaStreamGetCaptureInfo_v2, gpuless_capture_info\n"
        ".globl cudaStreamGetCaptureInfo_v3\n.set cudaStreamGetCaptureInfo_v3, gpuless_capture_info\n");

/* ---- events ----------------------------------------------------------- */

API cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
  int error = gpuless_gate(SITE_cudaEventCreateWithFlags, GPULESS_ANY_COMM, NULL);
  if (error) return done(error);
  struct event *made = malloc(sizeof *made);
  if (!made) return done(cudaErrorMemoryAllocation);
  *made = (struct event){GPULESS_NOTHING_PENDING, GPULESS_ANY_COMM};
  *e = (cudaEvent_t)made;
  return cudaSuccess;
}
API cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }
API cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned flags) {
  struct event *event = (struct event *)e;
  int error = gpuless_gate(SITE_cudaEventRecord, stream_of(s)->comm, NULL);
  if (error) return done(error);
  pthread_mutex_lock(&lock);
  event->pending = stream_of(s)->pending;
  event->comm = stream_of(s)->comm;
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}
API cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  return cudaEventRecordWithFlags(e, s, 0);
}
API cudaEventQuery(cudaEvent_t e) {
  struct event *event = (struct event *)e;
  int error = gpuless_gate(SITE_cudaEventQuery, event->comm, NULL);
  if (error) return done(error);
  return gpuless_is_pending(pending_in(&event->pending)) ? cudaErrorNotReady : cudaSuccess;
}
API cudaEventSynchronize(cudaEvent_t e) {
  struct event *event = (struct event *)e;
  int error = gpuless_gate(SITE_cudaEventSynchronize, event->comm, NULL);
  if (!error) wait_for(&event->pending);
  return done(error);
}
API cudaEventDestroy(cudaEvent_t e) {
  int error = gpuless_gate(SITE_cudaEventDestroy, ((struct event *)e)->comm, NULL);
  if (!error) free(e);
  return done(error);
}
#undef cudaEventElapsedTime
API gpuless_elapsed_time(float *ms, cudaEvent_t a, cudaEvent_t b) {
  *ms = 0;
  return cudaSuccess;
}
__asm__(".globl cudaEventElapsedTime\n.set cudaEventElapsedTime, gpuless_elapsed_time\n"
        ".globl cudaEventElapsedTime_v2\n.set cudaEventElapsedTime_v2, gpuless_elapsed_time\n");

/* ---- errors and the driver -------------------------------------------- */

API cudaGetLastError(void) {
  cudaError_t e = last_error;
  last_error = cudaSuccess;
  return e;
}
API cudaPeekAtLastError(void) { return last_error; }

#if CUDART_VERSION < 12000 /* its cudaGetDriverEntryPoint says nothing else than its result */
enum cudaDriverEntryPointQueryResult {
  cudaDriverEntryPointSuccess,
  cudaDriverEntryPointSymbolNotFound
};
#endif

static cudaError_t driver_entry(const char *name, void **f,
                                enum cudaDriverEntryPointQueryResult *found) {
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
  *f = driver ? dlsym(driver, name) : NULL;
  if (found) *found = *f ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return *f ? cudaSuccess : done(cudaErrorSymbolNotFound);
}
#undef cudaGetDriverEntryPoint
__attribute__((visibility("default"))) cudaError_t
gpuless_entry(const char *name, void **f, unsigned long long flags,
              enum cudaDriverEntryPointQueryResult *found) {
  return driver_entry(name, f, CUDART_VERSION < 12000 ? NULL : found);
}
__asm__(".globl cudaGetDriverEntryPoint\n.set cudaGetDriverEntryPoint, gpuless_entry\n");
#undef cudaGetDriverEntryPointByVersion
__attribute__((visibility("default"))) cudaError_t
gpuless_entry_by_version(const char *name, void **f, unsigned version,
                         unsigned long long flags,
                         enum cudaDriverEntryPointQueryResult *found) {
  return driver_entry(name, f, found);
}
__asm__(".globl cudaGetDriverEntryPointByVersion\n"
        ".set cudaGetDriverEntryPointByVersion, gpuless_entry_by_version\n");
