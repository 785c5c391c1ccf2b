/* Waiting for a 32-bit word to change, within a process or between processes. */
#ifndef GPULESS_FUTEX_H
#define GPULESS_FUTEX_H

#include <limits.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Sleeps while `*word` is `seen`. Wakes early at any time; `limit` may be NULL. Words in a shared mapping
 * need the shared form of the call, which FUTEX_PRIVATE_FLAG would not give. */
static inline void futex_wait(uint32_t *word, uint32_t seen, const struct timespec *limit) {
  syscall(SYS_futex, word, FUTEX_WAIT, seen, limit, NULL, 0);
}
static inline void futex_wake(uint32_t *word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
static inline void cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#else
  __asm__ volatile("" ::: "memory");
#endif
}

#endif
