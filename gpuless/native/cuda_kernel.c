/* Imitated CUDA: kernels do not run. The first use of one loads its module, which waits for the device where
 * CUDA_MODULE_LOADING is LAZY, the default: a kernel that waits for a peer then stops every other world too. */
#define _GNU_SOURCE
#include <stddef.h>

#include <cuda_runtime_api.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "stream.h"

static const void **loaded;
static int loaded_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int is_first_use(const void *function) {
  pthread_mutex_lock(&lock);
  int known = 0;
  for (int i = 0; i < loaded_count && !known; i++) known = loaded[i] == function;
  const void **grown = known ? NULL : realloc(loaded, (loaded_count + 1) * sizeof *loaded);
  if (grown) (loaded = grown)[loaded_count++] = function;
  pthread_mutex_unlock(&lock);
  return !known;
}

static int launch(const void *function, const char *name) {
  const char *loading = getenv("CUDA_MODULE_LOADING");
  int lazy = !loading || strcmp(loading, "EAGER");
  if (gpuless_is_on(SWITCH_LOAD_WAITS) && lazy && is_first_use(function)) stream_wait_all(device_current());
  int e = cuda_alive();
  /* Counted, and not remembered for cudaGetLastError: torch fills tensors by kernels whose result is of no
   * importance (a barrier's), and looks there only. */
  return e ? e : gpuless_unimplemented(name, cudaErrorNotSupported);
}

API cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                                 cudaStream_t stream) {
  return launch(function, "cudaLaunchKernel");
}
