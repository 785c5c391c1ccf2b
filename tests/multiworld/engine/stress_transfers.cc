// Two engines whose messages lie on a device and go from the core to a launcher: threads send, receive and give up at any moment,
// and the world may fail or end while launches are under way.
//
// Memory is as long as its message, and is freed as soon as it is the caller's again: the device's copy is what a sanitizer sees.
// The numbers that come on a key rise, and one is missing only if its send was given up, or the world ended.
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "moody_kernel.h"
#include "mover/engine.h"

using namespace multiworld;
using Guard = std::unique_lock<std::mutex>;
using std::chrono::microseconds;

namespace {

constexpr int worlds = 40, keys = 4, messages = 150;

std::atomic<bool> wrong{false};
std::atomic<int> given_up_in_flight{0}, begun_by_owners{0}, ended_in_flight{0}, left_in_stream{0};

void check(bool good, const char* what) {
  if (!good) fprintf(stderr, "stress: %s\n", what), wrong = true;
}

unsigned draw(unsigned below) {
  static std::atomic<unsigned> seed{1};
  thread_local std::mt19937 generator(seed++);
  return generator() % below;
}

int64_t in_us(int64_t us) {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec + us * 1000;
}

// ---- the device: what one side has sent and the other has received, in order

struct Link {
  std::mutex mutex;
  std::condition_variable moved;
  std::deque<std::pair<void*, uint64_t>> sent, wanted;
  uint64_t done = 0;
  std::atomic<bool> fails{false};  // now and then
};

// A stream and its communicator.
struct Side {
  Link* link;
  uint64_t enqueued = 0;
  bool aborted = false;
};

struct Event {
  Side* side = nullptr;
  uint64_t due = 0;
};

int enqueue(Side* side, std::deque<std::pair<void*, uint64_t>> Link::*queue, void* memory, uint64_t bytes) {
  if (draw(50) == 0) std::this_thread::sleep_for(microseconds(draw(500)));
  if (side->link->fails && draw(200) == 0) return 6;
  Guard guard(side->link->mutex);
  side->enqueued++;
  (side->link->*queue).push_back({memory, bytes});
  return 0;
}

int record(void* event, void* stream) {
  auto* side = static_cast<Side*>(stream);
  Guard guard(side->link->mutex);
  *static_cast<Event*>(event) = {side, side->enqueued};
  return 0;
}

// What both sides have begun is copied by whoever waits for it, until one of them aborts.
int synchronize(void* event) {
  auto* e = static_cast<Event*>(event);
  Link& link = *e->side->link;
  Guard guard(link.mutex);
  while (link.done < e->due && !e->side->aborted) {
    if (link.sent.empty() || link.wanted.empty()) {
      link.moved.wait_for(guard, microseconds(200));
      continue;
    }
    check(link.sent.front().second == link.wanted.front().second, "the sides began different messages");
    memcpy(link.wanted.front().first, link.sent.front().first, link.sent.front().second);
    link.sent.pop_front(), link.wanted.pop_front();
    link.done++;
    link.moved.notify_all();
  }
  return 0;
}

int abort_comm(void* comm) {
  auto* side = static_cast<Side*>(comm);
  Guard guard(side->link->mutex);
  side->aborted = true;
  side->link->sent.clear(), side->link->wanted.clear();
  side->link->moved.notify_all();
  return 0;
}

Functions functions() {
  Functions f;
  f.cudaEventCreateWithFlags = [](void** event, unsigned) { return *event = new Event, 0; };
  f.cudaEventDestroy = [](void* event) { return delete static_cast<Event*>(event), 0; };
  f.cudaEventRecord = record, f.cudaEventSynchronize = synchronize;
  f.cudaStreamWaitEvent = [](void*, void*, unsigned) { return 0; };
  f.cudaGetErrorString = f.ncclGetErrorString = [](int) { return "words"; };
  f.ncclGetLastError = [](void*) { return "detail"; };
  f.ncclSend = [](const void* from, size_t bytes, int, int peer, void* comm, void*) {
    check(peer == 1, "a send to ourselves");
    return enqueue(static_cast<Side*>(comm), &Link::sent, const_cast<void*>(from), bytes);
  };
  f.ncclRecv = [](void* to, size_t bytes, int, int peer, void* comm, void*) {
    check(peer == 0, "a receive from ourselves");
    return enqueue(static_cast<Side*>(comm), &Link::wanted, to, bytes);
  };
  f.ncclCommGetAsyncError = [](void*, int* found) { return *found = 0, 0; };
  f.ncclCommAbort = f.ncclCommDestroy = abort_comm;
  f.ncclCommFinalize = [](void*) { return 0; };
  return f;
}

// ---- the owner of an engine and its launcher, as Python is one

struct Operation_ {
  char* memory = nullptr;
  uint64_t number = 0;  // of the message that it sends
  bool runs = false;    // the owner is to hear its end
  bool copied = false;  // the memory is the owner's
  std::set<uint64_t>* given_up = nullptr;
  bool left = false;  // its caller goes on with the stream, and leaves the memory
};

class Owner {
 public:
  Owner(int rank, int descriptor, Link& link)
      : rank_(rank), side_{&link}, engine_(std::make_shared<Engine>(rank, std::map<int, int>{{1 - rank, descriptor}}, 1 << 20)) {
    launcher_->open(functions(), &side_, &side_);
    for (auto& thread : threads_) thread = std::thread(&Owner::serve, this);
    if (draw(2)) connect();
  }

  // The backend may be there later than the first messages.
  void connect() {
    Guard guard(lock_);
    if (!ended_) engine_->connect(1 - rank_, rank_ == 1, launcher_);
  }

  void fail() {
    {
      Guard guard(lock_);
      end();
    }
    for (uint64_t id : launcher_->stop()) over(id);
  }

  void close() {
    {
      Guard guard(lock_);
      begin();
    }
    launcher_->close();
    for (auto& thread : threads_) thread.join();
    begin();
    check(launcher_->drained(std::chrono::nanoseconds(0)), "something is left");
    launcher_->release();
    for (auto& [id, operation] : operations_) {
      check(!operation.runs, "the end of a launch was never heard");
      check(!operation.left, "nobody said that a message in the stream is over");
      if (operation.copied) free(operation.memory);
    }
  }

  void send(uint64_t key, std::set<uint64_t>& given_up) {
    for (uint64_t number = 1; number <= messages + 1 && !ended_ && !wrong; number++) {
      uint64_t size = 8 + key;
      auto* memory = static_cast<char*>(malloc(size));
      memcpy(memory, &number, 8);
      uint64_t id = start({memory, number, false, false, &given_up}, [&] {
        Message message{false, true, 1, key, {mode_device, 0, size}, draw(5) ? memory : nullptr, {}, false};
        message.streamed = draw(2);
        uint64_t id = message.streamed ? engine_->start_plain(message) : 0;
        return id ? id : engine_->start(message);
      });
      bool last = number > messages;
      if (!wait(id, last ? 60'000'000 : draw(4) ? 2'000'000 : draw(300))) {
        give_up_send(id, size);
      } else if (leaves(id)) {
        continue;
      }
      free(memory);
    }
  }

  void receive(uint64_t key, std::set<uint64_t>& came) {
    uint64_t newest = 0;
    while (newest != messages + 1 && !ended_ && !wrong) {
      uint64_t size = 8 + key;
      auto* memory = static_cast<char*>(malloc(size));
      bool any = draw(4) == 0;
      uint64_t id = start({memory}, [&] {
        char* to = draw(5) ? memory : nullptr;
        if (any) return engine_->receive_any({0}, key, {mode_device, 0, size}, to, true);
        return engine_->start({true, true, 0, key, {mode_device, 0, size}, to, {}, false});
      });
      if (wait(id, draw(3) ? 2'000'000 : draw(300))) {
        uint64_t number = taken(id);
        check(ended_ || number > newest, "a message came twice, or out of order");
        came.insert(newest = std::max(newest, number));
      } else {
        give_up_receive(id, size);
      }
      free(memory);
    }
  }

 private:
  template <class F>
  uint64_t start(const Operation_& operation, F started) {
    Guard guard(lock_);
    uint64_t id = started();
    operations_[id] = operation;
    begin();
    return id;
  }

  // Whether it is done, and well; without the lock.
  bool wait(uint64_t id, int64_t patience_us) {
    int64_t until = in_us(patience_us);
    while (in_us(0) < until && !wrong) {
      bool interrupted = false;
      if (engine_->wait(id, until, &interrupted)) {
        Outcome outcome;
        engine_->look(id, &outcome);
        return outcome == Outcome::done || outcome == Outcome::kept || outcome == Outcome::enqueued;
      }
      Guard guard(lock_);
      begin();
    }
    return false;
  }

  // Whether its caller goes on with the stream: its memory is used on.
  bool leaves(uint64_t id) {
    Guard guard(lock_);
    heard_.wait(guard, [&] { return !operations_[id].runs; });
    Outcome outcome;
    engine_->look(id, &outcome);
    if (outcome != Outcome::enqueued) return false;
    check(engine_->join(id, &side_).empty(), "a stream cannot wait for it");
    if (engine_->leave(id)) return false;
    left_in_stream++;
    return operations_[id].left = true;
  }

  void let_go(Operation_& operation) {
    if (std::exchange(operation.left, false)) free(operation.memory);
  }

  // Its memory is the caller's when this returns; the message may go on.
  void give_up_send(uint64_t id, uint64_t size) {
    Guard guard(lock_);
    bool goes_on = withdraw(id);
    Operation_& operation = operations_[id];
    if (goes_on && !operation.runs) {  // offered, or matched and not begun: it goes from a copy
      auto* copy = static_cast<char*>(malloc(size));
      memcpy(copy, operation.memory, size);
      operation.memory = copy, operation.copied = true;
      begin_waiting();
    }
    heard_.wait(guard, [&] { return operation.copied || !operation.runs; });
    if (!goes_on) operation.given_up->insert(operation.number);
  }

  // One that is on its way is waited for, and kept for the next receive.
  void give_up_receive(uint64_t id, uint64_t size) {
    Guard guard(lock_);
    bool goes_on = withdraw(id);
    Operation_& operation = operations_[id];
    heard_.wait(guard, [&] { return !operation.runs; });
    if (!goes_on || ended_ || operation.copied) return;
    check(engine_->look(id)->succeeded(), "a message was given up on its way, and has not come");
    auto* copy = static_cast<char*>(malloc(size));
    memcpy(copy, operation.memory, size);
    operation.memory = copy, operation.copied = true;
    engine_->keep(id);
  }

  bool withdraw(uint64_t id) {
    std::vector<Flown> flown;
    bool goes_on = engine_->withdraw(id, &flown);
    if (hear(flown)) given_up_in_flight++;
    begin();
    return goes_on;
  }

  uint64_t taken(uint64_t id) {
    Guard guard(lock_);
    auto receive = std::static_pointer_cast<ReceiveOperation>(engine_->look(id));
    uint64_t number;
    memcpy(&number, operations_[engine_->on_device(receive)].memory, 8);
    engine_->take(id);
    return number;
  }

  // ---- under the lock

  void begin() {
    for (Owed& owed : engine_->owed()) {
      if (owed.begins) {
        waiting_.push_back(owed.id);
      } else {
        Operation_& dropped = operations_[owed.id];
        if (dropped.left) {
          let_go(dropped);
        } else if (dropped.given_up) {
          dropped.given_up->insert(dropped.number);  // it was offered to who took another
        }
        engine_->take(owed.id);
      }
    }
    begin_waiting();
  }

  // Begin what there is memory for, up to the first without.
  void begin_waiting() {
    for (; !waiting_.empty() && !ended_; waiting_.pop_front()) {
      uint64_t id = waiting_.front();
      OperationRef found = engine_->look(id);
      bool receives = rank_ == 1;
      auto& message = static_cast<MessageOperation&>(*found);
      Operation_& operation = operations_[id];
      if (receives && !found->borrowed) {  // its caller had gone before it came
        operation = {static_cast<char*>(malloc(message.signature.nbytes)), 0, false, true};
      } else if (!receives && found->withdrawn && !operation.copied) {
        return;  // its caller copies it
      }
      begun_by_owners++;
      operation.runs = true;
      Call call{receives ? Call::Kind::recv : Call::Kind::send, operation.memory, operation.memory, message.signature.nbytes, 1, 0,
                !receives};
      if (!launcher_->add(id, {call}, nullptr, false)) operation.runs = false;
      engine_->begun(id);
    }
  }

  // Their ends are the owner's to hear; whether there are any.
  bool hear(const std::vector<Flown>& flown) {
    for (const Flown& one : flown) {
      operations_[one.id].runs = !one.dropped;
      if (one.dropped) let_go(operations_[one.id]);
    }
    heard_.notify_all();
    return !flown.empty();
  }

  void end() {
    if (ended_) return;
    ended_ = true;
    engine_->end(false);
    if (hear(engine_->adopt(0))) ended_in_flight++;
  }

  // ---- in the threads of the launcher

  void serve() {
    for (;;) {
      Job job = launcher_->next();
      if (job.type == Job::Type::none) return;
      if (job.type == Job::Type::end) launcher_->communicator()->abort();
      for (const Report& report : job.reports) {
        if (report.type == Report::Type::failed) fail();
        if (report.launch) over(report.launch);
      }
    }
  }

  void over(uint64_t id) {
    Guard guard(lock_);
    if (!operations_[id].runs) hear(engine_->adopt(id));
    check(operations_[id].runs, "an end was heard that is not ours");
    operations_[id].runs = false;
    let_go(operations_[id]);
    if (rank_ == 1) {
      engine_->landed(id);
    } else {
      engine_->over(id);
    }
    heard_.notify_all();
  }

  const int rank_;
  Side side_;
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Launcher> launcher_ = std::make_shared<Launcher>();
  std::thread threads_[2];
  std::mutex lock_;
  std::condition_variable heard_;
  std::map<uint64_t, Operation_> operations_;
  std::deque<uint64_t> waiting_;  // to be begun here, in order
  std::atomic<bool> ended_{false};
};

void play(bool ends) {
  int pair[2];
  check(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "no socket pair");
  Link link;
  link.fails = ends;
  Owner from(0, pair[0], link), to(1, pair[1], link);
  std::set<uint64_t> given_up[keys], came[keys];
  std::vector<std::thread> threads;
  for (uint64_t key = 0; key < keys; key++) {
    threads.emplace_back([&, key] { from.send(key, given_up[key]); });
    threads.emplace_back([&, key] { to.receive(key, came[key]); });
  }
  std::this_thread::sleep_for(microseconds(draw(3'000)));
  from.connect(), to.connect();
  if (ends) {
    std::this_thread::sleep_for(microseconds(draw(30'000)));
    from.fail(), to.fail();
  }
  for (auto& thread : threads) thread.join();
  from.close(), to.close();
  bool whole = true;
  for (int key = 0; key < keys; key++) {
    for (uint64_t number = 1; number <= messages; number++) whole &= came[key].contains(number) || given_up[key].contains(number);
  }
  check(whole || ends, "a message is missing");
}

}  // namespace

int main() {
  for (int i = 0; i < worlds && !wrong; i++) play(i % 2);
  printf("%d worlds: %d given up and %d ended in flight, %d left in the stream, %d begun by their owners: %s\n", worlds,
         given_up_in_flight.load(), ended_in_flight.load(), left_in_stream.load(), begun_by_owners.load(), wrong ? "WRONG" : "right");
  return wrong;
}
