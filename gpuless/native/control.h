/* Control block of the imitated CUDA runtime and NCCL.
 *
 * One file, mapped shared by gpuless_start. The probed process writes
 * injections through the functions at the end of this header (ctypes); the
 * runner reads counters from the file after the process is gone, so that "the
 * injection fired" can be checked even when the process was terminated.
 */
#ifndef GPULESS_CONTROL_H
#define GPULESS_CONTROL_H

#include <stdint.h>

#define GPULESS_MAGIC 0x55504730u /* "0GPU" */
#define GPULESS_VERSION 1u
#define GPULESS_NAME_SIZE 40
#define GPULESS_ANY_COMM (-1)

/* Every place where a failure can be injected, by the name of the call. */
#define GPULESS_SITES(X)                                                       \
  X(cudaMalloc) X(cudaEventCreateWithFlags) X(cudaEventRecord)                 \
  X(cudaEventQuery) X(cudaEventSynchronize) X(cudaEventDestroy)                \
  X(cudaStreamSynchronize) X(cudaStreamWaitEvent) X(cudaStreamQuery)           \
  X(cudaDeviceSynchronize) X(cudaMemcpyAsync)                                  \
  X(ncclGetUniqueId) X(ncclCommInitRank) X(ncclCommInitRankConfig)             \
  X(ncclCommSplit) X(ncclCommGetAsyncError) X(ncclCommAbort)                   \
  X(ncclCommDestroy) X(ncclCommFinalize) X(ncclCommRevoke)                     \
  X(ncclGroupStart) X(ncclGroupEnd)                                            \
  X(ncclAllReduce) X(ncclBroadcast) X(ncclBcast) X(ncclReduce)                 \
  X(ncclAllGather) X(ncclReduceScatter) X(ncclAlltoAll) X(ncclGather)          \
  X(ncclScatter) X(ncclSend) X(ncclRecv)

enum gpuless_site {
#define X(name) SITE_##name,
  GPULESS_SITES(X)
#undef X
      SITE_COUNT
};

enum gpuless_action {
  ACTION_NONE = 0,
  ACTION_FAIL = 1, /* the call returns `code` and does nothing */
  ACTION_HANG = 2, /* the call blocks its thread until the injection is lifted */
  ACTION_HOLD = 3, /* an NCCL operation is taken, but stays unfinished on its
                      stream until its communicator is aborted or the
                      injection is lifted: what a dead peer looks like */
};

struct gpuless_record { /* layout known to control.py: 80 bytes */
  char name[GPULESS_NAME_SIZE];
  int32_t action;  /* enum gpuless_action */
  int32_t code;    /* the error code returned by ACTION_FAIL */
  int32_t comm;    /* only for this communicator, or GPULESS_ANY_COMM */
  uint32_t after;  /* matching calls to let pass first */
  uint32_t times;  /* matching calls to hit after that, 0 = all of them */
  uint32_t calls;  /* all calls so far */
  uint32_t seen;   /* matching calls since the injection was set */
  uint32_t fired;  /* calls that were hit, over the life of the process */
  uint32_t hanging; /* threads blocked in ACTION_HANG now */
  uint32_t generation; /* grows with each change of the injection */
};

struct gpuless_control {
  uint32_t magic, version, sites, record_size;
  uint32_t unimplemented; /* calls to CUDA/NCCL functions that are not imitated */
  uint32_t launched;      /* NCCL operations that reached a stream */
  uint32_t queued;        /* NCCL operations that waited for a group to close */
  uint32_t aborted;       /* communicators aborted */
  char last_unimplemented[64];
  struct gpuless_record site[SITE_COUNT];
};

extern struct gpuless_control *gpuless;

/* Counts the call and applies its injection. Returns 0 when the call should go
 * on; otherwise the error code to return. `*hold` (may be NULL) is set when the
 * operation is to stay unfinished. */
int gpuless_gate(enum gpuless_site site, int comm, int *hold);
int gpuless_is_held(enum gpuless_site site, uint32_t generation);
int gpuless_unimplemented(const char *name, int code);

#endif
