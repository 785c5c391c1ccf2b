/* Imitated CUDA: devices, versions and errors. Compiled, as all cuda_*.c, against the headers of the installed
 * nvidia packages, whose macros give each function the symbol name of its CUDA version
 * (cudaGetDeviceProperties_v2 in CUDA 12). Preloaded, so that the official wheel's libraries bind to it instead
 * of libcudart. Kernels do not run. */
#define _GNU_SOURCE
#include <stddef.h>

#include <cuda_runtime_api.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "stream.h"

#define DEVICES 2
#define MEMORY (8ull << 30)

static __thread int current;
static __thread cudaError_t last_error;
static int physical[GPULESS_MAX_DEVICES]; /* by visible device */
static int visible;

/* GPULESS_DEVICES devices, of which CUDA_VISIBLE_DEVICES (numbers only) chooses. */
__attribute__((constructor)) static void find_devices(void) {
  const char *number = getenv("GPULESS_DEVICES"), *chosen = getenv("CUDA_VISIBLE_DEVICES");
  int installed = number ? atoi(number) : DEVICES;
  if (installed < 0 || installed > GPULESS_MAX_DEVICES) installed = GPULESS_MAX_DEVICES;
  if (!chosen) {
    for (visible = 0; visible < installed; visible++) physical[visible] = visible;
    return;
  }
  while (*chosen && visible < GPULESS_MAX_DEVICES) {
    char *end;
    long n = strtol(chosen, &end, 10);
    if (end == chosen || n < 0 || n >= installed) return; /* as CUDA: what follows a bad number is invisible */
    physical[visible++] = n;
    chosen = *end == ',' ? end + 1 : end;
  }
}

int device_count(void) { return visible; }
int device_current(void) { return current; }
int device_bus(int device) { return physical[device] + 1; }
unsigned long long device_memory(void) { return MEMORY; }

/* ---- errors ----------------------------------------------------------- */

/* "leaves the process in an inconsistent state and any further CUDA work will return the same error": the
 * errors whose description in driver_types.h says so. */
int cuda_is_sticky(int e) {
  return e == 700 || e == 702 || e == 710 || (e >= 714 && e <= 719) || e == 214 || e == 220;
}

int cuda_done(int e) {
  if (cuda_is_sticky(e) && !gpuless->sticky && gpuless_is_on(SWITCH_STICKY)) gpuless->sticky = e;
  if (e != cudaSuccess && e != cudaErrorNotReady) last_error = e;
  return e;
}
int cuda_alive(void) { return gpuless->sticky ? cuda_done(gpuless->sticky) : 0; }
int cuda_gate(enum gpuless_site site, int comm) {
  int e = gpuless_gate(site, comm, NULL);
  return cuda_done(gpuless->sticky ? (int)gpuless->sticky : e);
}

API cudaError_t cudaGetLastError(void) {
  cudaError_t e = gpuless->sticky ? gpuless->sticky : last_error;
  last_error = cudaSuccess;
  return e;
}
API cudaError_t cudaPeekAtLastError(void) { return gpuless->sticky ? gpuless->sticky : last_error; }

/* ---- devices ---------------------------------------------------------- */

API cudaError_t cudaGetDeviceCount(int *n) {
  *n = visible;
  return cuda_done(visible ? cudaSuccess : cudaErrorNoDevice);
}
API cudaError_t cudaGetDevice(int *d) { *d = current; return cudaSuccess; }
API cudaError_t cudaSetDevice(int d) {
  int e = gpuless_gate(SITE_cudaSetDevice, GPULESS_ANY_COMM, NULL);
  if (e) return cuda_done(e);
  if (d < 0 || d >= visible) return cuda_done(cudaErrorInvalidDevice);
  current = d;
  return cudaSuccess;
}
API cudaError_t cudaDriverGetVersion(int *v) { *v = CUDART_VERSION; return cudaSuccess; }
API cudaError_t cudaDeviceSynchronize(void) {
  int e = cuda_gate(SITE_cudaDeviceSynchronize, GPULESS_ANY_COMM);
  if (!e) stream_wait_all(current);
  return cuda_alive() ? gpuless->sticky : (unsigned)e;
}
API cudaError_t cudaDeviceCanAccessPeer(int *can, int a, int b) { *can = a != b; return cudaSuccess; }
API cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) { return cudaSuccess; }
API cudaError_t cudaDeviceGetStreamPriorityRange(int *low, int *high) {
  *low = 0;
  *high = -1;
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int d) {
  if (d < 0 || d >= visible) return cuda_done(cudaErrorInvalidDevice);
  snprintf(id, size, "0000:%02x:00.0", device_bus(d));
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int d) {
  switch ((int)a) {
  case cudaDevAttrComputeCapabilityMajor: *v = 9; break;
  case cudaDevAttrComputeCapabilityMinor: *v = 0; break;
  case cudaDevAttrMultiProcessorCount: *v = 4; break;
  case cudaDevAttrWarpSize: *v = 32; break;
  case cudaDevAttrPciBusId: *v = device_bus(d); break;
  default: *v = 1;
  }
  return cudaSuccess;
}
API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int d) {
  if (d < 0 || d >= visible) return cuda_done(cudaErrorInvalidDevice);
  memset(p, 0, sizeof *p);
  strcpy(p->name, "imitated GPU");
  p->major = 9;
  p->totalGlobalMem = MEMORY;
  p->multiProcessorCount = 4;
  p->warpSize = 32;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxThreadsPerBlock = 1024;
  p->pciBusID = device_bus(d);
  return cudaSuccess;
}
