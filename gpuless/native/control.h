/* Control block of the imitated CUDA runtime and NCCL.
 *
 * One file per process, mapped shared: by gpuless_start (a probe), or named
 * after the process in the folder GPULESS_CONTROL. Injections are written by
 * the process itself (ctypes, see the end of control.c) or by another one
 * (control.py); counters stay readable after the process is gone, so that "the
 * injection fired" can be checked even when the process was terminated.
 */
#ifndef GPULESS_CONTROL_H
#define GPULESS_CONTROL_H

#include <stdint.h>

#define GPULESS_MAGIC 0x55504730u /* "0GPU" */
#define GPULESS_VERSION 2u
#define GPULESS_NAME_SIZE 40
#define GPULESS_ANY_COMM (-1)

/* Every place where a failure can be injected, by the name of the call. */
#define GPULESS_SITES(X)                                                       \
  X(cudaMalloc) X(cudaFree) X(cudaEventCreateWithFlags)                  \
  X(cudaEventRecord)                                                           \
  X(cudaEventQuery) X(cudaEventSynchronize) X(cudaEventDestroy)                \
  X(cudaStreamSynchronize) X(cudaStreamWaitEvent) X(cudaStreamQuery)           \
  X(cudaDeviceSynchronize) X(cudaMemcpyAsync) X(cudaMemsetAsync)               \
  X(cudaStreamCreateWithPriority) X(cudaStreamDestroy) X(cudaSetDevice)        \
  X(ncclGetUniqueId) X(ncclCommInitRank) X(ncclCommInitRankConfig)             \
  X(ncclCommSplit) X(ncclCommGetAsyncError) X(ncclCommAbort)                   \
  X(ncclCommDestroy) X(ncclCommFinalize) X(ncclCommRevoke)                     \
  X(ncclCommShrink) X(ncclCommGrow) X(ncclCommRegister) X(ncclMemAlloc)         \
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

enum gpuless_switch { /* what another process may turn on or off at any time */
  SWITCH_NETWORK,       /* peers are on other hosts: NCCL notices their death (ncclRemoteError) */
  SWITCH_FREE_WAITS,    /* cudaFree waits for the device, as CUDA's does */
  SWITCH_LOAD_WAITS,    /* so does the first use of a module (lazy loading) */
  SWITCH_MISUSE_ABORTS, /* the use of a dead handle ends the process */
  SWITCH_STICKY,        /* 700, 719 ... stick. Off in a probe, which injects them into one world to look at another */
  SWITCH_COUNT
};

struct gpuless_control { /* layout known to control.py */
  uint32_t magic, version, sites, record_size;
  uint32_t unimplemented; /* calls to CUDA/NCCL functions that are not imitated */
  uint32_t launched;      /* NCCL operations that reached a stream */
  uint32_t queued;        /* NCCL operations that waited for a group to close */
  uint32_t aborted;       /* communicators aborted */
  char last_unimplemented[64];
  uint32_t process;      /* its id */
  uint32_t changed;      /* futex: grows with each change of an injection */
  uint32_t misused;      /* uses of handles after their end: in CUDA and NCCL, memory that was freed */
  uint32_t sticky;       /* CUDA error that every later call returns, 0: none */
  uint32_t communicators; /* live ones */
  uint32_t streams;       /* live ones that the program made */
  uint64_t allocated;     /* bytes of device memory */
  char last_misused[64];
  uint32_t switches[8];   /* by enum gpuless_switch */
  struct gpuless_record site[SITE_COUNT];
};

#pragma GCC visibility push(default)
extern struct gpuless_control *gpuless;

/* Counts the call and applies its injection. Returns 0 when the call should go
 * on; otherwise the error code to return. `*hold` (may be NULL) is set when the
 * operation is to stay unfinished. */
int gpuless_gate(enum gpuless_site site, int comm, int *hold);
int gpuless_is_held(enum gpuless_site site, uint32_t generation);
int gpuless_unimplemented(const char *name, int code);
/* Counts and prints the use of a dead handle by the function `name`; returns `code`. */
int gpuless_misuse(const char *name, int code);
int gpuless_is_on(enum gpuless_switch which);
/* A probe, the only process of its job: its communicators' peers are imaginary. */
int gpuless_is_alone(void);
/* Sleeps for a moment, less when an injection changes. For waits that an injection asked for. */
void gpuless_nap(void);

/* For programs, by ctypes. */
void gpuless_start(const char *path);
int gpuless_inject(const char *name, int action, int code, int comm, uint32_t after, uint32_t times);
long gpuless_counter(const char *name, int what);
long gpuless_total(int what);
int gpuless_switch(int which, int on);
#pragma GCC visibility pop

#endif
