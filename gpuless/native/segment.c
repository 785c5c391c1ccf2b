#define _GNU_SOURCE
#include "segment.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "futex.h"

#define MAGIC 0x4743434c554e4c47ull
#define SPINS 200 /* a few microseconds */

struct name { /* what a unique id holds */
  uint64_t magic, nonce, process_start;
  uint32_t process;
  int32_t descriptor;
};

struct segment {
  uint64_t magic, nonce;
  uint32_t ranks, joined;
  struct member member[];
};

/* ---- processes -------------------------------------------------------- */

/* When a process began, in clock ticks since boot; 0: there is none, or only its exit status is left of it. */
static uint64_t process_start(uint32_t process) {
  char path[64], text[1024];
  snprintf(path, sizeof path, "/proc/%u/stat", process);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return 0;
  text[n] = 0;
  char *at = strrchr(text, ')'), state = 0; /* the name in parentheses may hold anything */
  unsigned long long start = 0;
  if (!at || sscanf(at + 2, "%c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                    &state, &start) != 2)
    return 0;
  return state == 'Z' || state == 'X' ? 0 : start;
}

/* As NCCL: the host's name and boot, unless NCCL_HOSTID is set (getHostHash in its utils.cc). */
static uint64_t host_hash(void) {
  char text[1024] = "";
  const char *given = getenv("NCCL_HOSTID");
  if (given) snprintf(text, sizeof text, "%s", given);
  else gethostname(text, sizeof text - 1);
  uint64_t hash = 5381;
  for (const char *p = text; *p; p++) hash = hash * 33 ^ (unsigned char)*p;
  return hash;
}

/* ---- naming ----------------------------------------------------------- */

/* Descriptors of the segments that this process has named, until all ranks have mapped them. */
static struct kept { struct kept *next; int descriptor; struct segment *head; } *kept;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int is_complete(const struct segment *head) {
  uint32_t ranks = __atomic_load_n(&head->ranks, __ATOMIC_ACQUIRE);
  return ranks && __atomic_load_n(&head->joined, __ATOMIC_ACQUIRE) >= ranks;
}

/* Those that all ranks have mapped, and the one with this number. */
static void forget(uint64_t nonce) {
  pthread_mutex_lock(&lock);
  for (struct kept **at = &kept; *at;) {
    struct kept *k = *at;
    if (!is_complete(k->head) && k->head->nonce != nonce) {
      at = &k->next;
      continue;
    }
    *at = k->next;
    close(k->descriptor);
    munmap(k->head, sizeof *k->head);
    free(k);
  }
  pthread_mutex_unlock(&lock);
}

void segment_forget(const unique_id *id) {
  struct name name;
  memcpy(&name, id, sizeof name);
  forget(name.nonce);
}

static int new_memory(struct segment **head) {
  int fd = memfd_create("gpuless", MFD_CLOEXEC);
  if (fd < 0) return -1;
  *head = ftruncate(fd, 4096) ? MAP_FAILED
                              : mmap(NULL, sizeof **head, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (*head != MAP_FAILED) return fd;
  close(fd);
  return -1;
}

result segment_name(unique_id *id) {
  struct segment *head;
  int fd = new_memory(&head);
  struct kept *k = fd < 0 ? NULL : malloc(sizeof *k);
  if (!k) {
    if (fd >= 0) close(fd);
    return SYSTEM_ERROR;
  }
  struct name name = {MAGIC, 0, process_start(getpid()), getpid(), fd};
  if (getrandom(&name.nonce, sizeof name.nonce, 0) < 0) name.nonce = (uintptr_t)head;
  head->nonce = name.nonce;
  head->magic = MAGIC;
  memset(id, 0, sizeof *id);
  memcpy(id, &name, sizeof name);
  forget(0);
  pthread_mutex_lock(&lock);
  *k = (struct kept){kept, fd, head};
  kept = k;
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

/* ---- joining ---------------------------------------------------------- */

static size_t round_up(size_t n) { return (n + 4095) & ~(size_t)4095; }
static size_t rings_at(int ranks) {
  return round_up(sizeof(struct segment) + ranks * sizeof(struct member));
}
static size_t size_for(int ranks) {
  return rings_at(ranks) + (size_t)RING_CLASSES * ranks * ranks * sizeof(struct ring);
}

static void *map_part(int fd, size_t size) {
  void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return p == MAP_FAILED ? NULL : p;
}

/* The first rank says how many there are; the others have to agree before they set the size. */
static int agree(int fd, const struct name *name, int ranks) {
  struct segment *head = map_part(fd, sizeof *head);
  if (!head) return 0;
  uint32_t found = 0;
  int same = head->magic == MAGIC && head->nonce == name->nonce &&
             (__atomic_compare_exchange_n(&head->ranks, &found, ranks, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) ||
              found == (uint32_t)ranks);
  munmap(head, sizeof *head);
  return same;
}

/* Opens the segment through the process that named it. -1: that process is gone. */
static int open_named(const struct name *name) {
  char path[64];
  if (process_start(name->process) != name->process_start) return -1;
  snprintf(path, sizeof path, "/proc/%u/fd/%d", name->process, name->descriptor);
  return open(path, O_RDWR | O_CLOEXEC);
}

static void ring_all(comm_t c) {
  for (int r = 0; r < c->ranks; r++) segment_ring_bell(c->segment, r);
}

static void enter(struct segment *s, comm_t c) {
  struct member *me = segment_member(s, c->rank);
  me->process = getpid();
  me->process_start = process_start(getpid());
  me->host = host_hash();
  me->bus = device_bus(c->device);
  __atomic_store_n(&me->joined, 1, __ATOMIC_SEQ_CST);
  __atomic_add_fetch(&s->joined, 1, __ATOMIC_SEQ_CST);
  ring_all(c);
}

/* What a rank waits for. `stop`, `stop_too`: flags that end the wait. */
struct wait {
  comm_t comm;
  volatile int *stop, *stop_too;
  int (*holds)(const struct wait *);
  enum exchange which;
  uint64_t round;
  const char *absent;
};

static int is_stopped(const struct wait *w) { return *w->stop || (w->stop_too && *w->stop_too); }

/* Whether it came true before the wait was stopped. */
static int wait_until(const struct wait *w) {
  comm_t c = w->comm;
  int holds = 0;
  while (!holds && !is_stopped(w)) {
    uint32_t seen = segment_attend(c->segment, c->rank);
    holds = w->holds(w);
    if (!holds && !is_stopped(w)) segment_sleep(c->segment, c->rank, seen);
    segment_turn_away(c->segment, c->rank);
  }
  return holds;
}

static int all_joined(const struct wait *w) {
  return __atomic_load_n(&w->comm->segment->joined, __ATOMIC_SEQ_CST) >= (uint32_t)w->comm->ranks;
}

/* "Duplicate GPU detected": two ranks of one host on one device, as NCCL's initTransportsRank refuses them. */
static int shares_device(struct segment *s, comm_t c) {
  struct member *me = segment_member(s, c->rank);
  for (int r = 0; r < c->ranks; r++) {
    struct member *other = segment_member(s, r);
    if (r == c->rank || other->host != me->host || other->bus != me->bus) continue;
    fprintf(stderr, "[gpuless] Duplicate GPU detected : rank %d and rank %d both on CUDA device %x000\n",
            c->rank, r, me->bus);
    return 1;
  }
  return 0;
}

/* Blocks without limit for a process that is gone, as NCCL's bootstrap does for one that never comes. */
static int open_patiently(comm_t c, const struct name *name) {
  int fd;
  while ((fd = open_named(name)) < 0 && !c->stopped) {
    const struct timespec nap = {0, 10000000};
    nanosleep(&nap, NULL);
  }
  return fd;
}

static struct segment *map(comm_t c, const struct name *name) {
  int fd = open_patiently(c, name);
  if (fd < 0) return NULL;
  size_t size = size_for(c->ranks);
  struct segment *s = agree(fd, name, c->ranks) && ftruncate(fd, size) == 0 ? map_part(fd, size) : NULL;
  close(fd);
  return s;
}

result segment_join(comm_t c, const unique_id *id) {
  struct name name;
  memcpy(&name, id, sizeof name);
  if (name.magic != MAGIC) return INVALID_ARGUMENT;
  struct segment *s = map(c, &name);
  if (!s) return INTERNAL_ERROR;
  c->segment = s;
  enter(s, c);
  result r = wait_until(&(struct wait){c, &c->stopped, .holds = all_joined}) ? SUCCESS : INTERNAL_ERROR;
  if (r == SUCCESS && shares_device(s, c)) r = INVALID_USAGE;
  forget(0);
  return r;
}

void segment_leave(struct segment *s, int rank, int ranks, int orderly) {
  if (orderly) __atomic_store_n(&segment_member(s, rank)->finalized, 1, __ATOMIC_SEQ_CST);
  __atomic_store_n(&segment_member(s, rank)->left, 1, __ATOMIC_SEQ_CST);
  for (int r = 0; r < ranks; r++) segment_ring_bell(s, r);
  munmap(s, size_for(ranks));
}

static int all_finalized(const struct wait *w) {
  for (int r = 0; r < w->comm->ranks; r++)
    if (!__atomic_load_n(&segment_member(w->comm->segment, r)->finalized, __ATOMIC_SEQ_CST)) return 0;
  return 1;
}

void segment_finalize(comm_t c) {
  __atomic_store_n(&segment_member(c->segment, c->rank)->finalized, 1, __ATOMIC_SEQ_CST);
  ring_all(c);
  wait_until(&(struct wait){c, &c->stopped, .holds = all_finalized});
}

/* ---- collective calls ------------------------------------------------- */

static struct slot *slot_of(const struct wait *w, int rank) {
  return &segment_member(w->comm->segment, rank)->slot[w->which][w->round % 2];
}

static int all_told(const struct wait *w) {
  for (int r = 0; r < w->comm->ranks; r++)
    if ((!w->absent || !w->absent[r]) && __atomic_load_n(&slot_of(w, r)->round, __ATOMIC_SEQ_CST) != w->round)
      return 0;
  return 1;
}

int segment_exchange(comm_t c, comm_t waiting, enum exchange which, const char *absent,
                     const char mine[SLOT_BYTES], char (*all)[SLOT_BYTES]) {
  uint64_t round = ++segment_member(c->segment, c->rank)->round[which];
  struct wait w = {c, &c->aborted, waiting ? &waiting->stopped : NULL, all_told, which, round, absent};
  struct slot *own = slot_of(&w, c->rank);
  memcpy(own->data, mine, SLOT_BYTES);
  __atomic_store_n(&own->round, round, __ATOMIC_SEQ_CST);
  ring_all(c);
  if (!wait_until(&w)) return -1;
  for (int r = 0; r < c->ranks; r++) memcpy(all[r], slot_of(&w, r)->data, SLOT_BYTES);
  return 0;
}

/* ---- rings and bells -------------------------------------------------- */

struct ring *segment_ring(struct segment *s, enum ring_class class, int from, int to) {
  struct ring *rings = (struct ring *)((char *)s + rings_at(s->ranks));
  return &rings[((size_t)class * s->ranks + from) * s->ranks + to];
}
struct member *segment_member(struct segment *s, int rank) { return &s->member[rank]; }

void segment_ring_bell(struct segment *s, int rank) {
  struct member *m = segment_member(s, rank);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  if (!__atomic_load_n(&m->sleeping, __ATOMIC_SEQ_CST)) return;
  __atomic_add_fetch(&m->bell, 1, __ATOMIC_SEQ_CST);
  futex_wake(&m->bell);
}
uint32_t segment_attend(struct segment *s, int rank) {
  struct member *m = segment_member(s, rank);
  uint32_t seen = __atomic_load_n(&m->bell, __ATOMIC_SEQ_CST);
  __atomic_add_fetch(&m->sleeping, 1, __ATOMIC_SEQ_CST);
  return seen;
}
void segment_sleep(struct segment *s, int rank, uint32_t seen) {
  struct member *m = segment_member(s, rank);
  for (int i = 0; i < SPINS; i++) {
    if (__atomic_load_n(&m->bell, __ATOMIC_SEQ_CST) != seen) return;
    cpu_relax();
  }
  futex_wait(&m->bell, seen, NULL);
}
void segment_turn_away(struct segment *s, int rank) {
  __atomic_sub_fetch(&segment_member(s, rank)->sleeping, 1, __ATOMIC_SEQ_CST);
}

static int is_lost(struct member *m) {
  if (__atomic_load_n(&m->finalized, __ATOMIC_ACQUIRE)) return 0;
  if (__atomic_load_n(&m->left, __ATOMIC_ACQUIRE)) return 1;
  return process_start(m->process) != m->process_start;
}

int segment_lost_peer(comm_t c) {
  for (int r = 0; r < c->ranks; r++)
    if (r != c->rank && is_lost(segment_member(c->segment, r))) return 1;
  return 0;
}
