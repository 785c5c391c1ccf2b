/* Imitated CUDA: memory. All of it is host memory; what was allocated as what is remembered, since CUDA treats
 * copies from and to pageable memory differently ("API synchronization behavior" in the runtime's documentation). */
#define _GNU_SOURCE
#include <stddef.h>

#include <cuda_runtime_api.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "stream.h"

#define INLINE_BYTES (64 << 10) /* on an idle stream: a GPU too may be done before the call returns */

/* ---- allocations, sorted by address ----------------------------------- */

struct allocation {
  char *start;
  size_t bytes;
  enum memory_kind kind;
  int device;
};

static struct allocation *allocations;
static int allocation_count, allocation_room;
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;

/* The index of the first allocation that starts behind p. */
static int behind(const char *p) {
  int low = 0, high = allocation_count;
  while (low < high) {
    int middle = (low + high) / 2;
    if (allocations[middle].start <= p) low = middle + 1;
    else high = middle;
  }
  return low;
}

static int grow(void) {
  if (allocation_count < allocation_room) return 0;
  int room = allocation_room ? 2 * allocation_room : 64;
  struct allocation *grown = realloc(allocations, room * sizeof *grown);
  if (!grown) return -1;
  allocations = grown;
  allocation_room = room;
  return 0;
}

static int insert(struct allocation a) {
  pthread_rwlock_wrlock(&lock);
  int failed = grow();
  if (!failed) {
    int at = behind(a.start);
    memmove(&allocations[at + 1], &allocations[at], (allocation_count - at) * sizeof a);
    allocations[at] = a;
    allocation_count++;
    if (a.kind == MEMORY_DEVICE) gpuless->allocated += a.bytes;
  }
  pthread_rwlock_unlock(&lock);
  return failed;
}

/* Forgets the allocation that starts at p; 0 when there is one. */
static int erase(const void *p) {
  pthread_rwlock_wrlock(&lock);
  int at = behind(p) - 1, found = at >= 0 && allocations[at].start == p;
  if (found) {
    if (allocations[at].kind == MEMORY_DEVICE) gpuless->allocated -= allocations[at].bytes;
    memmove(&allocations[at], &allocations[at + 1], (--allocation_count - at) * sizeof *allocations);
  }
  pthread_rwlock_unlock(&lock);
  return found ? 0 : -1;
}

enum memory_kind memory_kind(const void *p, int *device) {
  pthread_rwlock_rdlock(&lock);
  int at = behind(p) - 1;
  int inside = at >= 0 && (const char *)p < allocations[at].start + allocations[at].bytes;
  enum memory_kind kind = inside ? allocations[at].kind : MEMORY_PAGEABLE;
  if (device) *device = inside ? allocations[at].device : -1;
  pthread_rwlock_unlock(&lock);
  return kind;
}

static int allocate(void **p, size_t n, enum memory_kind kind) {
  if (kind == MEMORY_DEVICE && gpuless->allocated + n > device_memory() * device_count())
    return cudaErrorMemoryAllocation;
  if (posix_memalign(p, 512, n ? n : 1)) return cudaErrorMemoryAllocation;
  if (insert((struct allocation){*p, n, kind, device_current()}) == 0) return cudaSuccess;
  free(*p);
  return cudaErrorMemoryAllocation;
}

static void *free_later(void *p) {
  stream_wait_all(-1);
  free(p);
  return NULL;
}

/* What still runs may use the memory. CUDA's cudaFree waits; here, unless it is asked to, a thread does. */
static void free_when_idle(void *p) {
  pthread_t thread;
  if (stream_all_idle()) free(p);
  else if (pthread_create(&thread, NULL, free_later, p) == 0) pthread_detach(thread);
}

static int release(void *p) {
  if (!p) return cudaSuccess;
  if (erase(p)) return gpuless_misuse("cudaFree", cudaErrorInvalidValue);
  free_when_idle(p);
  return cudaSuccess;
}

API cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
  *total = device_memory();
  *free_bytes = gpuless->allocated < *total ? *total - gpuless->allocated : 0;
  return cuda_alive();
}
API cudaError_t cudaMalloc(void **p, size_t n) {
  int e = cuda_gate(SITE_cudaMalloc, GPULESS_ANY_COMM);
  return e ? e : cuda_done(allocate(p, n, MEMORY_DEVICE));
}
API cudaError_t cudaFree(void *p) {
  int e = cuda_gate(SITE_cudaFree, GPULESS_ANY_COMM);
  if (e) return e;
  if (p && gpuless_is_on(SWITCH_FREE_WAITS)) stream_wait_all(device_current());
  return cuda_done(release(p));
}
API cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags) {
  int e = cuda_alive();
  return e ? e : cuda_done(allocate(p, n, MEMORY_PINNED));
}
API cudaError_t cudaFreeHost(void *p) {
  int e = cuda_alive();
  return e ? e : cuda_done(release(p));
}
API cudaError_t cudaHostRegister(void *p, size_t n, unsigned flags) {
  return cuda_done(insert((struct allocation){p, n, MEMORY_PINNED, device_current()})
                       ? cudaErrorMemoryAllocation : cudaSuccess);
}
API cudaError_t cudaHostUnregister(void *p) {
  return cuda_done(erase(p) ? cudaErrorHostMemoryNotRegistered : cudaSuccess);
}
API cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags) {
  *device = host;
  return cudaSuccess;
}
API cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
  memset(a, 0, sizeof *a);
  static const enum cudaMemoryType types[] = {cudaMemoryTypeUnregistered, cudaMemoryTypeHost,
                                              cudaMemoryTypeDevice};
  a->type = types[memory_kind(p, &a->device)];
  a->devicePointer = a->type == cudaMemoryTypeUnregistered ? NULL : (void *)p;
  a->hostPointer = a->type == cudaMemoryTypeHost ? (void *)p : NULL;
  return cudaSuccess;
}

/* ---- copies and fills ------------------------------------------------- */

struct copy {
  char *to;
  const char *from;
  size_t bytes;
  char staged[]; /* what was in pageable memory when the call was made */
};

static void run_copy(void *argument) {
  struct copy *c = argument;
  if (!gpuless->sticky) memmove(c->to, c->from, c->bytes);
  free(c);
}

static struct copy *new_copy(void *to, const void *from, size_t n, int stage) {
  struct copy *c = malloc(sizeof *c + (stage ? n : 0));
  if (!c) return NULL;
  *c = (struct copy){to, stage ? c->staged : from, n};
  if (stage) memcpy(c->staged, from, n);
  return c;
}

static int enqueue_copy(struct stream *s, void *to, const void *from, size_t n) {
  int from_pageable = memory_kind(from, NULL) == MEMORY_PAGEABLE;
  int to_pageable = memory_kind(to, NULL) == MEMORY_PAGEABLE;
  struct marker *before = stream_mark(s);
  if (!before && (n <= INLINE_BYTES || from_pageable || to_pageable)) {
    memmove(to, from, n);
    return cudaSuccess;
  }
  marker_drop(before);
  struct copy *c = new_copy(to, from, n, from_pageable);
  if (!c || stream_submit(s, run_copy, c)) return cudaErrorMemoryAllocation;
  if (!to_pageable) return cudaSuccess;
  struct marker *end = stream_mark(s); /* "the function will return only once the copy has completed" */
  marker_wait(end);
  marker_drop(end);
  return cudaSuccess;
}

struct fill {
  void *to;
  int value;
  size_t bytes;
};

static void run_fill(void *argument) {
  struct fill *f = argument;
  if (!gpuless->sticky) memset(f->to, f->value, f->bytes);
  free(f);
}

static int enqueue_fill(struct stream *s, void *p, int value, size_t n) {
  struct marker *before = stream_mark(s);
  if (!before && n <= INLINE_BYTES) {
    memset(p, value, n);
    return cudaSuccess;
  }
  marker_drop(before);
  struct fill *f = malloc(sizeof *f);
  if (!f) return cudaErrorMemoryAllocation;
  *f = (struct fill){p, value, n};
  return stream_submit(s, run_fill, f) ? cudaErrorMemoryAllocation : cudaSuccess;
}

static void synchronize(struct stream *s) {
  struct marker *end = stream_mark(s);
  marker_wait(end);
  marker_drop(end);
}

static int usable(struct stream *s) {
  if (!s) return cudaErrorInvalidResourceHandle;
  return *stream_capturing(s) ? cudaErrorStreamCaptureImplicit : cudaSuccess;
}

API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind k, cudaStream_t handle) {
  struct stream *s = stream_of(handle);
  int e = cuda_gate(SITE_cudaMemcpyAsync, s ? *stream_comm(s) : GPULESS_ANY_COMM);
  if (!e) e = cuda_done(usable(s));
  return e ? e : cuda_done(enqueue_copy(s, to, from, n));
}
API cudaError_t cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind k) {
  struct stream *s = stream_of(NULL);
  int e = cuda_alive();
  if (!e) e = cuda_done(enqueue_copy(s, to, from, n));
  if (!e) synchronize(s);
  return e ? e : cuda_alive();
}
API cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t n,
                                    cudaStream_t handle) {
  return cudaMemcpyAsync(to, from, n, cudaMemcpyDeviceToDevice, handle);
}
API cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t handle) {
  struct stream *s = stream_of(handle);
  int e = cuda_gate(SITE_cudaMemsetAsync, s ? *stream_comm(s) : GPULESS_ANY_COMM);
  if (!e) e = cuda_done(usable(s));
  return e ? e : cuda_done(enqueue_fill(s, p, value, n));
}
API cudaError_t cudaMemset(void *p, int value, size_t n) {
  int e = cuda_alive();
  return e ? e : cuda_done(enqueue_fill(stream_of(NULL), p, value, n));
}
