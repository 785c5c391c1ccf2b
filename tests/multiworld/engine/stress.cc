// Two engines on a socket pair, threads that send, receive and give up at any moment, and an event loop beside them.
//
// Messages of one key are numbered. A receive that is given up keeps its message for the next one, and a send that is given up
// before it is matched is not sent. So the numbers that come on a key rise, and a number is missing only if its send was given
// up. The kernel refuses and divides calls at random. All memory is exactly as long as the message, and is freed as soon as it is
// the caller's again: a sanitizer sees the rest.
#include <sys/socket.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "moody_kernel.h"
#include "mover/engine.h"

using namespace multiworld;

namespace {

constexpr int keys = 5;
constexpr uint64_t sizes[] = {8, 8, 64, 5'000, 300'000};

std::atomic<bool> failed{false};
const int bell = eventfd(0, EFD_NONBLOCK);  // readable when an event loop has more to do

int64_t in_us(int64_t us) {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec + us * 1000;
}

void check(bool good, const char* what) {
  if (!good) fprintf(stderr, "stress: %s\n", what), failed = true;
}

// The outcome of an operation, which is let go of if it is done.
Outcome taken(Engine& engine, uint64_t id) {
  OperationRef operation = engine.look(id);
  engine.take(id);
  return operation ? operation->outcome : Outcome::pending;
}

bool finish(Engine& engine, uint64_t id, int64_t patience_us, Outcome& outcome) {
  bool interrupted = false;
  if (id >> 24 & 1) engine.attend(id, bell);
  if (engine.wait(id, in_us(patience_us), &interrupted)) {
    outcome = taken(engine, id);
    return true;
  }
  engine.withdraw(id);
  return false;
}

// All messages of a key have one length, so that a receive that follows another takes what that one left.
void sender(Engine& engine, uint64_t key, int count, std::set<uint64_t>& given_up) {
  std::mt19937 draw(unsigned(100 + key));
  uint64_t size = sizes[key % 5];
  for (uint64_t number = 1; number <= uint64_t(count) && !failed; number++) {
    char* memory = static_cast<char*>(malloc(size));
    memset(memory, int(number & 0x7f), size);
    memcpy(memory, &number, 8);
    uint64_t id = engine.start({false, false, 1, key, {mode_fixed, 0, size}, memory, {}, true});
    Outcome outcome = Outcome::done;
    if (!finish(engine, id, draw() % 4 ? 2'000'000 : draw() % 300, outcome)) given_up.insert(number);
    check(outcome == Outcome::done, "a send failed");
    memset(memory, 0xff, size);
    free(memory);
  }
}

void receiver(Engine& engine, uint64_t key, uint64_t last, std::set<uint64_t>& came) {
  std::mt19937 draw(unsigned(200 + key));
  uint64_t size = sizes[key % 5], newest = 0;
  while (newest != last && !failed) {
    char* memory = static_cast<char*>(malloc(size));
    bool any = draw() % 4 == 0;
    uint64_t id = any ? engine.receive_any({0}, key, {mode_fixed, 0, size}, memory, false)
                      : engine.start({true, false, 0, key, {mode_fixed, 0, size}, memory, {}, true});
    Outcome outcome = Outcome::done;
    if (finish(engine, id, draw() % 3 ? 2'000'000 : draw() % 300, outcome)) {
      check(outcome == Outcome::done, "a receive failed");
      uint64_t number;
      memcpy(&number, memory, 8);
      check(number > newest, "a message came twice, or out of order");
      check(size == 8 || memory[size - 1] == char(number & 0x7f), "a message is torn");
      came.insert(newest = number);
    }
    free(memory);
  }
}

// A collective that goes through the backend is told by its number, whoever calls it last, and goes on if it is given up.
void agree(bool given_up) {
  int pair[2];
  check(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "no socket pair");
  Engine a(0, {{1, pair[0]}}, 1 << 20), b(1, {{0, pair[1]}}, 1 << 20);
  std::string fingerprint(24, 'x');
  uint64_t first = a.collective(0, {0, 1}, fingerprint, true, {});
  if (given_up) a.withdraw(first);
  b.progress();  // what a calls is there before b calls it
  uint64_t last = b.collective(0, {0, 1}, fingerprint, true, {});
  a.progress();
  for (auto [engine, id] : {std::pair<Engine*, uint64_t>{&a, first}, {&b, last}}) {
    auto owed = engine->owed();
    check(owed.size() == 1 && owed[0].begins && owed[0].id == id, "agreed without a number");
    check(taken(*engine, id) == Outcome::pending, "it ended before the backend's end");
    engine->over(id);
    bool gone = given_up && engine == &a;
    check(taken(*engine, id) == (gone ? Outcome::pending : Outcome::done), "it did not end with the backend");
  }
}

// An owner whose messages stay on a device: its lock guards what is begun there, in order.
struct Owner {
  explicit Owner(Engine& engine) : engine(engine) {}

  void begin() {
    for (Owed& owed : engine.owed()) {
      if (owed.begins) {
        begun.push_back(owed.id);
      } else {
        OperationRef ended = engine.look(owed.id);
        if (ended && !ended->done()) dropped.insert(messages[owed.id]);
        engine.take(owed.id);
      }
    }
  }
  uint64_t start(bool receives, uint64_t key, bool any, uint64_t number) {
    std::lock_guard guard(lock);
    Signature signature{mode_device, 0, 8 + key};
    uint64_t id = any ? engine.receive_any({0}, key, signature, nullptr, true)
                      : engine.start({receives, true, receives ? 0 : 1, key, signature, nullptr, {}, false});
    numbers[id] = number;
    messages[id] = {key, number};
    begin();
    return id;
  }
  // Whether it is done in time; else it is given up, and `goes_on` may be true.
  bool wait(uint64_t id, int64_t patience_us, bool& goes_on) {
    int64_t until = in_us(patience_us);
    while (!failed && in_us(0) < until) {
      bool interrupted = false;
      if (engine.wait(id, until, &interrupted)) return true;
      std::lock_guard guard(lock);
      begin();
    }
    std::lock_guard guard(lock);
    goes_on = engine.withdraw(id);
    begin();
    return false;
  }

  Engine& engine;
  std::mutex lock;
  std::map<uint64_t, uint64_t> numbers;  // of messages, by the number of the operation that has them
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> messages;  // key and number, by the operation that began with it
  std::set<std::pair<uint64_t, uint64_t>> dropped;  // given up while they were offered, and not taken
  std::deque<uint64_t> begun;
};

void device_sender(Owner& owner, uint64_t key, int count, std::set<uint64_t>& given_up) {
  std::mt19937 draw(unsigned(300 + key));
  for (uint64_t number = 1; number <= uint64_t(count) + 1 && !failed; number++) {
    bool goes_on = false, last = number > uint64_t(count);
    uint64_t id = owner.start(false, key, false, number);
    if (owner.wait(id, last ? 60'000'000 : draw() % 4 ? 2'000'000 : draw() % 300, goes_on)) {
      check(taken(owner.engine, id) == Outcome::done, "a send on the device failed");
    } else if (!goes_on) {
      given_up.insert(number);
    }
  }
}

// A receive that is given up on its way waits for the message, which is kept for the next one.
void device_receiver(Owner& owner, uint64_t key, uint64_t last, std::set<uint64_t>& came) {
  std::mt19937 draw(unsigned(400 + key));
  uint64_t newest = 0;
  while (newest != last && !failed) {
    bool goes_on = false;
    uint64_t id = owner.start(true, key, draw() % 4 == 0, 0);
    if (owner.wait(id, draw() % 3 ? 2'000'000 : draw() % 300, goes_on)) {
      std::lock_guard guard(owner.lock);
      auto receive = std::static_pointer_cast<ReceiveOperation>(owner.engine.look(id));
      uint64_t number = owner.numbers[owner.engine.on_device(receive)];
      check(number > newest, "a message on the device came twice, or out of order");
      check(taken(owner.engine, id) == Outcome::done, "a receive on the device failed");
      came.insert(newest = number);
    }
    while (goes_on && !failed && !owner.engine.look(id)->done()) {
      bool interrupted = false;
      owner.engine.wait(id, in_us(1'000'000), &interrupted);
      std::lock_guard guard(owner.lock);
      owner.begin();
    }
    std::lock_guard guard(owner.lock);
    if (goes_on) owner.engine.keep(id);
  }
}

// Transfers begin in the same order on both sides, and what is enqueued may be done for its caller before it has landed.
void transfer(Owner& from, Owner& to, std::mt19937& draw) {
  std::scoped_lock guard(from.lock, to.lock);
  from.begin();
  to.begin();
  while (!from.begun.empty() && !to.begun.empty() && draw() % 8) {
    uint64_t sent = from.begun.front(), got = to.begun.front();
    from.begun.pop_front();
    to.begun.pop_front();
    to.numbers[got] = from.numbers[sent];
    OperationRef receive = to.engine.look(got);
    if (receive && !receive->withdrawn && draw() % 3 == 0) to.engine.over(got);
    to.engine.landed(got);
    from.engine.over(sent);
  }
}

void on_a_device(int messages) {
  int pair[2];
  check(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "no socket pair");
  Engine a(0, {{1, pair[0]}}, 1 << 20), b(1, {{0, pair[1]}}, 1 << 20);
  Owner from(a), to(b);
  a.readable(), b.readable();  // the guard is at work, too
  std::set<uint64_t> given_up[keys], came[keys];
  std::vector<std::thread> threads;
  for (uint64_t key = 0; key < keys; key++) {
    threads.emplace_back([&, key] { device_sender(from, key, messages, given_up[key]); });
    threads.emplace_back([&, key] { device_receiver(to, key, uint64_t(messages) + 1, came[key]); });
  }
  std::atomic<bool> over{false};
  std::thread backend([&] {
    std::mt19937 draw(500);
    while (!over) transfer(from, to, draw), a.progress(), b.progress(), usleep(200);
  });
  for (auto& thread : threads) thread.join();
  over = true;
  backend.join();
  for (int key = 0; key < keys; key++) {
    for (uint64_t number = 1; number <= uint64_t(messages); number++) {
      bool gone = given_up[key].contains(number) || from.dropped.contains({key, number});
      check(came[key].contains(number) || gone, "a message on the device is missing");
    }
  }
  a.end(false);
  b.end(false);
}

}  // namespace

int main(int count, char** args) {
  int messages = count > 1 ? atoi(args[1]) : 500;
  agree(false);
  agree(true);
  on_a_device(messages / 2);
  if (failed) return 1;
  int pair[2];
  check(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "no socket pair");
  Engine a(0, {{1, pair[0]}}, 1 << 20), b(1, {{0, pair[1]}}, 1 << 20);
  std::set<uint64_t> given_up[keys], came[keys];
  std::vector<std::thread> threads;
  for (uint64_t key = 0; key < keys; key++) {
    threads.emplace_back([&, key] {
      sender(a, key, messages, given_up[key]);
      // The last one is never given up, so that the receiver knows when it has all.
      uint64_t size = sizes[key % 5], number = uint64_t(messages) + 1;
      std::string last(size, char(number & 0x7f));
      memcpy(last.data(), &number, 8);
      bool done = false, interrupted = true;
      uint64_t id = a.start({false, false, 1, key, {mode_fixed, 0, size}, last.data(), {}, true});
      for (int64_t until = in_us(60'000'000); !done && interrupted;) {
        interrupted = false;
        done = a.wait(id, until, &interrupted);
      }
      check(done, "the last send was not done");
    });
    threads.emplace_back([&, key] { receiver(b, key, uint64_t(messages) + 1, came[key]); });
  }
  std::atomic<bool> over{false};
  std::thread loop([&] {
    uint64_t count = 1;
    while (!over) {
      a.progress(), b.progress(), usleep(250);
      check(write(bell, &count, sizeof count) == sizeof count, "the bell cannot be rung"), usleep(250);
      check(read(bell, &count, sizeof count) == sizeof count, "the bell was not rung");
    }
  });
  for (auto& thread : threads) thread.join();
  over = true;
  loop.join();
  int missing = 0;
  for (int key = 0; key < keys; key++) {
    for (uint64_t number = 1; number <= uint64_t(messages); number++) {
      if (came[key].contains(number)) continue;
      missing++;
      check(given_up[key].contains(number), "a message is missing");
    }
  }
  a.end(false);
  b.end(false);
  check(moody::refusals && moody::parts, "the kernel was in a good mood");
  printf("%d messages, %d given up in time; %u calls refused, %u in part\n", keys * messages, missing, moody::refusals.load(),
         moody::parts.load());
  return failed;
}
