/* Where a thread of C or C++ was when the process crashed: Python's faulthandler, which runs first, knows only Python's
 * frames, and nothing at all of a thread that is not Python's. */
#define _GNU_SOURCE
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#define DEPTH 48

static void show(int number) {
  void *frames[DEPTH];
  char name[16] = "", text[96];
  pthread_getname_np(pthread_self(), name, sizeof name);
  int n = snprintf(text, sizeof text, "[gpuless] signal %d in thread '%s', native stack:\n", number, name);
  if (write(STDERR_FILENO, text, n) == n)
    backtrace_symbols_fd(frames, backtrace(frames, DEPTH), STDERR_FILENO);
  raise(number); /* SA_RESETHAND: this one ends the process */
}

__attribute__((constructor)) static void install(void) {
  static const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
  struct sigaction action = {.sa_handler = show, .sa_flags = SA_RESETHAND | SA_NODEFER | SA_ONSTACK};
  void *own;
  backtrace(&own, 1); /* loads the unwinder now: in a handler it may not */
  for (unsigned i = 0; i < sizeof signals / sizeof *signals; i++) sigaction(signals[i], &action, NULL);
}
