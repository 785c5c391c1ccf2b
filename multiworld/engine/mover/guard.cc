#include "guard.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

#include "engine.h"

namespace multiworld {
namespace {

// Who waits, or comes to wait within this time, moves the data itself.
constexpr int patience_ms = 20;
constexpr int no_bell = -1, beginning = -2;

std::atomic<int> bell{no_bell};

[[noreturn]] void guard(int bell) {
  pthread_setname_np(pthread_self(), "mw-guard");
  std::vector<pollfd> watched;
  while (true) {
    watched.assign(1, {bell, POLLIN, 0});
    bool owing = Engine::pay_all(watched);
    poll(watched.data(), watched.size(), owing ? patience_ms : -1);
    uint64_t count;
    if (watched[0].revents) [[maybe_unused]] ssize_t got = read(bell, &count, sizeof count);
  }
}

// Its bell; no_bell if there is no thread or descriptor to be had: then it is tried again, and whoever waits pays meanwhile.
int begun() {
  int made = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (made < 0) return no_bell;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread(guard, made).detach();
  } catch (const std::system_error&) {
    close(made);
    made = no_bell;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return made;
}

}  // namespace

bool Guard::look() {
  int there = no_bell;
  if (bell.compare_exchange_strong(there, beginning)) bell = there = begun();
  // A new one is rung for, too: another engine may have come to owe something since it looked.
  if (there >= 0) {
    uint64_t one = 1;
    [[maybe_unused]] ssize_t written = write(there, &one, sizeof one);
  }
  return there != no_bell;
}

void Guard::after_fork_in_child() {
  if (bell >= 0) close(bell);
  bell = no_bell;
}

}  // namespace multiworld
