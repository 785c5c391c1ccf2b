#define _GNU_SOURCE
#include "stream.h"

#include <pthread.h>
#include <stdlib.h>

#include "control.h"
#include "device.h"

#define ALIVE 0x53545245u /* "STRE" */
#define STACK_SIZE (256 << 10)

struct item {
  struct item *next;
  stream_run *run;
  void *argument;
};

/* Kept after its end, so that the use of a dead handle is seen. */
struct stream {
  unsigned alive;
  int device, blocking, priority, comm, capturing;
  int has_thread, is_running, is_ending;
  struct item *first, **end;
  struct stream *next_of_all, **link;
  pthread_mutex_t lock;
  pthread_cond_t changed;
};

static struct stream *all;
static struct stream *defaults[GPULESS_MAX_DEVICES];
static int blocking_streams; /* that follow the default stream and are followed by it */
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;

static struct stream *make(int device, int blocking, int priority) {
  struct stream *s = calloc(1, sizeof *s);
  if (!s) return NULL;
  s->alive = ALIVE;
  s->device = device;
  s->blocking = blocking;
  s->priority = priority;
  s->comm = GPULESS_ANY_COMM;
  s->end = &s->first;
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->changed, NULL);
  s->next_of_all = all;
  s->link = &all;
  if (all) all->link = &s->next_of_all;
  all = s;
  return s;
}

struct stream *stream_new(int device, int blocking, int priority) {
  pthread_mutex_lock(&all_lock);
  struct stream *s = make(device, blocking, priority);
  if (s) blocking_streams += blocking;
  pthread_mutex_unlock(&all_lock);
  return s;
}

static struct stream *default_of(int device) {
  pthread_mutex_lock(&all_lock);
  if (!defaults[device]) defaults[device] = make(device, 0, 0);
  pthread_mutex_unlock(&all_lock);
  return defaults[device];
}

struct stream *stream_of(void *handle) {
  if ((size_t)handle <= 2) return default_of(device_current());
  struct stream *s = handle;
  return s->alive == ALIVE ? s : NULL;
}

int stream_device(const struct stream *s) { return s->device; }
int stream_priority(const struct stream *s) { return s->priority; }
int *stream_comm(struct stream *s) { return &s->comm; }
int *stream_capturing(struct stream *s) { return &s->capturing; }

/* ---- the executor ----------------------------------------------------- */

static struct item *next_item(struct stream *s) {
  s->is_running = 0;
  while (!s->first && !s->is_ending) pthread_cond_wait(&s->changed, &s->lock);
  struct item *i = s->first;
  if (!i) return NULL;
  s->first = i->next;
  if (!s->first) s->end = &s->first;
  s->is_running = 1;
  return i;
}

static void *execute(void *argument) {
  struct stream *s = argument;
  for (;;) {
    pthread_mutex_lock(&s->lock);
    struct item *i = next_item(s);
    pthread_mutex_unlock(&s->lock);
    if (!i) return NULL;
    i->run(i->argument);
    free(i);
  }
}

static int start_thread(struct stream *s) {
  pthread_attr_t attributes;
  pthread_t thread;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, STACK_SIZE);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  int failed = pthread_create(&thread, &attributes, execute, s);
  pthread_attr_destroy(&attributes);
  s->has_thread = !failed;
  return failed ? -1 : 0;
}

static int append(struct stream *s, stream_run *run, void *argument) {
  struct item *i = malloc(sizeof *i);
  if (!i) return -1;
  *i = (struct item){NULL, run, argument};
  pthread_mutex_lock(&s->lock);
  int failed = s->has_thread ? 0 : start_thread(s);
  if (!failed) {
    *s->end = i;
    s->end = &i->next;
    pthread_cond_signal(&s->changed);
  }
  pthread_mutex_unlock(&s->lock);
  if (failed) free(i);
  return failed;
}

static void run_finish(void *marker) {
  marker_finish(marker);
  marker_drop(marker);
}
static void run_wait(void *marker) {
  marker_wait(marker);
  marker_drop(marker);
}

static struct marker *mark(struct stream *s) {
  if (stream_is_idle(s)) return NULL;
  struct marker *m = marker_new();
  if (m && append(s, run_finish, marker_keep(m))) {
    marker_drop(m);
    run_finish(m); /* no memory or thread: better a marker too early than one that never comes */
    return NULL;
  }
  return m;
}

static int follow(struct stream *s, struct marker *m) {
  if (marker_is_finished(m)) return 0;
  return append(s, run_wait, marker_keep(m));
}

/* The legacy default stream waits for all blocking streams of its device, and they wait for it ("Stream
 * synchronization behavior" in the CUDA runtime's documentation). */
static void order_with_default(struct stream *s) {
  int is_default = s == defaults[s->device];
  if (!blocking_streams || (!is_default && !s->blocking)) return;
  pthread_mutex_lock(&all_lock);
  for (struct stream *other = all; other; other = other->next_of_all) {
    int related = is_default ? other->blocking : other == defaults[s->device];
    if (other == s || !related || other->device != s->device) continue;
    struct marker *m = mark(other);
    follow(s, m);
    marker_drop(m);
  }
  pthread_mutex_unlock(&all_lock);
}

int stream_submit(struct stream *s, stream_run *run, void *argument) {
  order_with_default(s);
  return append(s, run, argument);
}
struct marker *stream_mark(struct stream *s) {
  order_with_default(s);
  return mark(s);
}
int stream_follow(struct stream *s, struct marker *m) { return follow(s, m); }

int stream_is_idle(struct stream *s) {
  pthread_mutex_lock(&s->lock);
  int idle = !s->first && !s->is_running;
  pthread_mutex_unlock(&s->lock);
  return idle;
}

int stream_all_idle(void) {
  int idle = 1;
  pthread_mutex_lock(&all_lock);
  for (struct stream *s = all; s && idle; s = s->next_of_all) idle = stream_is_idle(s);
  pthread_mutex_unlock(&all_lock);
  return idle;
}

void stream_end(struct stream *s) {
  pthread_mutex_lock(&all_lock);
  blocking_streams -= s->blocking;
  *s->link = s->next_of_all;
  if (s->next_of_all) s->next_of_all->link = s->link;
  pthread_mutex_unlock(&all_lock);
  pthread_mutex_lock(&s->lock);
  s->alive = 0;
  s->is_ending = 1;
  pthread_cond_signal(&s->changed);
  pthread_mutex_unlock(&s->lock);
}

void stream_wait_all(int device) {
  struct marker *found[256];
  int count;
  do { /* in portions: marks are taken under the lock, waited for without it */
    count = 0;
    pthread_mutex_lock(&all_lock);
    for (struct stream *s = all; s && count < 256; s = s->next_of_all)
      if ((device < 0 || s->device == device) && (found[count] = mark(s))) count++;
    pthread_mutex_unlock(&all_lock);
    for (int i = 0; i < count; i++) {
      marker_wait(found[i]);
      marker_drop(found[i]);
    }
  } while (count == 256);
}
