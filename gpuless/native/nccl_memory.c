/* Imitated NCCL: memory, registration, and user-defined reductions. */
#include <stdlib.h>

#include "nccl.h"

API int cudaMalloc(void **p, size_t n);
API int cudaFree(void *p);

API result ncclMemAlloc(void **p, size_t n) {
  int e = gpuless_gate(SITE_ncclMemAlloc, GPULESS_ANY_COMM, NULL);
  return e ? e : cudaMalloc(p, n) ? CUDA_ERROR : SUCCESS;
}
API result ncclMemFree(void *p) { return cudaFree(p) ? CUDA_ERROR : SUCCESS; }

/* Registering takes a communicator that has failed (register.cc): else nccl2, which takes its memory back before it
 * aborts, could never abort one. */
API result ncclCommRegister(comm_t c, void *buffer, size_t n, void **handle) {
  result e = comm_check_handle(c, "ncclCommRegister");
  if (!e) e = gpuless_gate(SITE_ncclCommRegister, c->id, NULL);
  if (!e) *handle = buffer;
  return e;
}
API result ncclCommDeregister(comm_t c, void *handle) { return comm_check_handle(c, "ncclCommDeregister"); }
API result ncclCommWindowRegister(comm_t c, void *buffer, size_t n, void **window, int flags) {
  result e = comm_check(c, "ncclCommWindowRegister");
  if (!e) *window = buffer;
  return e;
}
API result ncclCommWindowDeregister(comm_t c, void *window) {
  return comm_check(c, "ncclCommWindowDeregister");
}

result premul_of(comm_t c, int op, struct premul *out) {
  int at = op - FIRST_USER_REDUCTION;
  if (at < 0) return SUCCESS;
  if (at >= c->premul_count || !c->premul[at].used) return INVALID_ARGUMENT;
  *out = c->premul[at];
  return SUCCESS;
}

API result ncclWinGetUserPtr(comm_t c, void *window, void **out) {
  result e = comm_check(c, "ncclWinGetUserPtr");
  if (!e) *out = window;
  return e;
}
API result ncclCommMemStats(comm_t c, int which, uint64_t *value) {
  result e = comm_check(c, "ncclCommMemStats");
  if (!e) *value = 0; /* the rings are in host memory */
  return e;
}

/* The sum of what each rank has multiplied by its scalar first. `where`: 0 in device memory, 1 given now. */
API result ncclRedOpCreatePreMulSum(int *op, void *scalar, int type, int where, comm_t c) {
  result e = comm_check(c, "ncclRedOpCreatePreMulSum");
  if (e) return e;
  int at = 0;
  while (at < c->premul_count && c->premul[at].used) at++;
  struct premul *grown = at < c->premul_count ? c->premul : realloc(c->premul, (at + 1) * sizeof *grown);
  if (!grown) return SYSTEM_ERROR;
  c->premul = grown;
  if (at == c->premul_count) c->premul_count++;
  c->premul[at] = (struct premul){type, scalar, where ? reduction_scalar(scalar, type) : 0, where, 1};
  *op = FIRST_USER_REDUCTION + at; /* numbers after the predefined ones */
  return SUCCESS;
}
API result ncclRedOpDestroy(int op, comm_t c) {
  result e = comm_check(c, "ncclRedOpDestroy");
  if (e) return e;
  struct premul p;
  e = op < FIRST_USER_REDUCTION ? INVALID_ARGUMENT : premul_of(c, op, &p);
  if (!e) c->premul[op - FIRST_USER_REDUCTION].used = 0;
  return e;
}
