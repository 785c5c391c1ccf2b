/* The imitated NCCL: what its files know of each other. Numbers as in nccl.h of every release since 2.14. */
#ifndef GPULESS_NCCL_H
#define GPULESS_NCCL_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "control.h"
#include "device.h"
#include "marker.h"

enum {
  SUCCESS = 0,
  CUDA_ERROR = 1,
  SYSTEM_ERROR = 2,
  INTERNAL_ERROR = 3,
  INVALID_ARGUMENT = 4,
  INVALID_USAGE = 5,
  REMOTE_ERROR = 6,
  IN_PROGRESS = 7
};

typedef int result;
typedef struct gpuless_comm *comm_t;
typedef struct { char bytes[128]; } unique_id;

struct segment;

/* A communicator. The record stays after its end, so that the use of its handle is seen. */
struct gpuless_comm {
  int id; /* order of creation in this process, from 0 */
  int ranks, rank, device;
  int blocking;
  volatile int state;     /* of its creation or last non-blocking call: a result */
  volatile int stopped;   /* aborted or revoked: operations end without having moved anything */
  volatile int aborted, destroyed, finalized;
  int finalizing;         /* threads in a blocking ncclCommFinalize of it */
  volatile int failed;    /* REMOTE_ERROR once a peer's death was noticed */
  struct gpuless_comm *parent; /* whose ranks it is being made of */
  int users;              /* calls on other communicators that are being made of its ranks */
  struct segment *segment; /* NULL: the peers are imaginary */
  struct marker *job;     /* end of its last asynchronous call */
  uint64_t sends_to, receives_from; /* peers that it is connected to, a bit each; of those from 64 on it knows none */
  struct marker *last;    /* end of its last launch: launches of a communicator never overlap */
  int premul_count;
  struct premul *premul;  /* user-defined reductions */
};

/* A user-defined reduction: the sum of what each rank has multiplied by its scalar. */
struct premul {
  int type;
  void *where;    /* read when the operation runs, unless it was given by value */
  double value;
  int by_value, used;
};

/* One collective or point-to-point operation, as it was given to NCCL. */
struct gpuless_op {
  enum gpuless_site site;
  struct gpuless_comm *comm;
  const void *send;
  void *recv;
  size_t count, bytes; /* of one rank's share, as NCCL counts it for this operation */
  int type, reduction;
  struct premul premul; /* as it was when the operation was given: it may be destroyed before this runs */
  int peer;            /* root or peer, -1 where there is none */
  void *stream;
  int held; /* ACTION_HOLD: taken, never finished */
  uint32_t generation;
};

/* nccl_comm.c */
extern pthread_mutex_t comm_lock; /* of the table, and of what a communicator shares against its end */
comm_t comm_new(int ranks, int rank, int blocking);
/* Why this communicator takes no call: SUCCESS, or what the call returns. `name`: of the called function. */
result comm_check(comm_t c, const char *name);
result comm_check_handle(comm_t c, const char *name); /* whatever state it is in: NCCL's CommCheck, argcheck.cc */
/* Its running operations end, and later ones end at once. */
void comm_stop(comm_t c);
/* What a call does that may take long: in this thread, or in one of its own where the communicator is
 * non-blocking or a group is open. */
typedef result comm_job(comm_t c, void *argument); /* frees its argument */
result comm_run(comm_t c, comm_job *job, void *argument);
/* `config`: an ncclConfig_t or NULL. */
#define CONFIG_DEFAULT 1
int config_blocking(const void *config, int inherited);

/* The result of the creation of `c`, which leaves nothing behind when it failed. */
result comm_created(comm_t c, comm_t *out, result r);
/* Ends a communicator that the program never had or no longer has. */
void comm_discard(comm_t c);
/* Creates a communicator of those that share an id: `ncclCommInitRank` and its like. */
result comm_make(enum gpuless_site site, comm_t *out, int ranks, const unique_id *id, int rank,
                 const void *config);

/* nccl_group.c */
int group_depth(void); /* of the calling thread */
/* The end of the calling thread's group waits for the communicator's asynchronous call. */
result group_join(comm_t c);
void group_fail(result error);

/* nccl_memory.c: the user-defined reduction of that number; nothing for a predefined one. */
result premul_of(comm_t c, int op, struct premul *out);

/* loopback.c: no peers: each rank sees its own share and nothing else. */
void loopback_move(const struct gpuless_op *op);

/* collectives.c: runs operations of one launch, which make progress together. */
void collectives_run(comm_t c, const struct gpuless_op *ops, int count);

/* reduction.c */
#define FIRST_USER_REDUCTION 5
size_t type_size(int type);
/* into[i] = into[i] (reduction) from[i] */
void reduction_apply(void *into, const void *from, size_t count, int type, int reduction);
/* What comes before the first step (PreMulSum) and after the last (AVG). */
void reduction_scale(void *data, size_t count, int type, double factor);
void reduction_average(void *data, size_t count, int type, int ranks);
double reduction_scalar(const void *scalar, int type);

#endif
