/* Imitated CUDA: the way from the runtime to functions of the driver, which imitation.py generates. */
#define _GNU_SOURCE
#include <stddef.h>

#include <cuda_runtime_api.h>

#include <dlfcn.h>

#include "device.h"

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
  return *f ? cudaSuccess : cuda_done(cudaErrorSymbolNotFound);
}
#undef cudaGetDriverEntryPoint
API cudaError_t
gpuless_entry(const char *name, void **f, unsigned long long flags,
              enum cudaDriverEntryPointQueryResult *found) {
  return driver_entry(name, f, CUDART_VERSION < 12000 ? NULL : found);
}
__asm__(".globl cudaGetDriverEntryPoint\n.set cudaGetDriverEntryPoint, gpuless_entry\n");
#undef cudaGetDriverEntryPointByVersion
API cudaError_t
gpuless_entry_by_version(const char *name, void **f, unsigned version,
                         unsigned long long flags,
                         enum cudaDriverEntryPointQueryResult *found) {
  return driver_entry(name, f, found);
}
__asm__(".globl cudaGetDriverEntryPointByVersion\n"
        ".set cudaGetDriverEntryPointByVersion, gpuless_entry_by_version\n");
