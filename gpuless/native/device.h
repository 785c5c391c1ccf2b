/* The imitated devices, and what all imitated CUDA functions do first and last. */
#ifndef GPULESS_DEVICE_H
#define GPULESS_DEVICE_H

#include "control.h"

#define GPULESS_MAX_DEVICES 64
#define API __attribute__((visibility("default")))

int device_count(void);
int device_current(void); /* of the calling thread */
int device_bus(int device); /* the PCI bus of the physical device behind CUDA_VISIBLE_DEVICES */
unsigned long long device_memory(void); /* bytes of each device */

/* The result of a call: remembered for cudaGetLastError unless it is success or "not ready". An error that
 * damages the context (700, 719 ...) is returned by every later call of the process. */
int cuda_done(int error);
/* To be called first: the sticky error, or what the injection asks for; 0 when the call should go on. */
int cuda_gate(enum gpuless_site site, int comm);
int cuda_alive(void); /* the same for a call where nothing can be injected */
int cuda_is_sticky(int error);

/* What kind of memory an address is in. */
enum memory_kind { MEMORY_PAGEABLE, MEMORY_PINNED, MEMORY_DEVICE };
enum memory_kind memory_kind(const void *p, int *device);

#endif
