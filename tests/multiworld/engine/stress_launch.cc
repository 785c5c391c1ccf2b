// Launchers on functions that take the place of CUDA's and NCCL's: threads launch, join and ask, while one ends or aborts at any moment.
//
// Each launch is told to be over once, or is not launched. Memory is freed as soon as that is known, a communicator when it is aborted
// and an event when it is destroyed; what NCCL may do in one thread only is written without a lock: a sanitizer sees the rest.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <set>

#include "launch/launcher.h"

using namespace multiworld;
using std::chrono::microseconds;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int worlds = 150, launches = 200;

std::atomic<bool> wrong{false};
std::atomic<int> alive{0};  // communicators

void check(bool good, const char* what) {
  if (!good) fprintf(stderr, "stress: %s\n", what), wrong = true;
}

unsigned draw(unsigned below) {
  static std::atomic<unsigned> seed{1};
  thread_local std::mt19937 generator(seed++);
  return generator() % below;
}

void rest(unsigned most_us) { std::this_thread::sleep_for(microseconds(draw(most_us))); }

// What the launches of a world do not share with another's; its address stands for the stream.
struct Device {
  std::atomic<bool> aborted{false};
  std::mutex mutex;
  Clock::time_point due{};  // the end of what is in the stream
};

struct Event {
  std::mutex mutex;
  Device* device = nullptr;
  Clock::time_point due;
};

struct Comm {
  uint64_t calls = 0;
  std::atomic<int> begun{0};
  Device* device;
};

int send(const void* from, size_t, int, int, void* comm, void*) {
  auto* c = static_cast<Comm*>(comm);
  c->calls++;
  auto* memory = static_cast<char*>(const_cast<void*>(from));
  memory[0]++;
  c->begun = int(draw(3));
  if (draw(20) == 0) rest(300);
  return draw(2'000) ? 0 : 6;
}

int state(void* comm, int* found) {
  auto* c = static_cast<Comm*>(comm);
  c->calls++;
  *found = c->begun > 0 ? (c->begun--, 7) : 0;
  return draw(4'000) ? 0 : 6;
}

int abort_comm(void* comm) {
  auto* c = static_cast<Comm*>(comm);
  c->device->aborted = true;
  delete c;
  alive--;
  return 0;
}

int record(void* event, void* stream) {
  auto* e = static_cast<Event*>(event);
  auto* device = static_cast<Device*>(stream);
  std::lock_guard<std::mutex> lock(e->mutex), second(device->mutex);
  device->due = std::max(device->due, Clock::now()) + microseconds(draw(4) ? draw(30) : draw(3'000));
  e->device = device, e->due = device->due;
  return 0;
}

int synchronize(void* event) {
  auto* e = static_cast<Event*>(event);
  for (;;) {
    {
      std::lock_guard<std::mutex> lock(e->mutex);
      if (e->device->aborted || Clock::now() >= e->due) return 0;
    }
    rest(50);
  }
}

int wait_for(void*, void* event, unsigned) {
  if (event) std::lock_guard<std::mutex>(static_cast<Event*>(event)->mutex);
  return 0;
}

Functions functions() {
  Functions f;
  f.cudaEventCreateWithFlags = [](void** event, unsigned) { return *event = new Event, 0; };
  f.cudaEventDestroy = [](void* event) { return delete static_cast<Event*>(event), 0; };
  f.cudaEventRecord = record, f.cudaEventSynchronize = synchronize, f.cudaStreamWaitEvent = wait_for;
  f.cudaMemcpyAsync = [](void* to, const void* from, size_t, int, void*) {
    return *static_cast<char*>(to) = *static_cast<const char*>(from), 0;
  };
  f.cudaGetErrorString = f.ncclGetErrorString = [](int) { return "words"; };
  f.ncclGetLastError = [](void*) { return "detail"; };
  f.ncclGroupStart = f.ncclGroupEnd = [] { return 0; };
  f.ncclSend = send, f.ncclCommGetAsyncError = state;
  f.ncclCommAbort = abort_comm, f.ncclCommDestroy = abort_comm;
  f.ncclCommRevoke = [](void* comm, int) { return static_cast<Comm*>(comm)->begun = 1, 0; };
  f.ncclCommFinalize = [](void* comm) { return static_cast<Comm*>(comm)->calls++, 0; };
  return f;
}

// The owner of one launcher.
class World {
 public:
  World() {
    alive++;
    auto* comm = new Comm;
    comm->device = &device_;
    launcher_.open(functions(), &device_, comm);
  }

  void play() {
    std::thread threads[] = {std::thread(&World::serve, this), std::thread(&World::serve, this), std::thread(&World::call, this, 0),
                             std::thread(&World::call, this, 1)};
    unsigned how = draw(3);
    if (how == 0) rest(30'000), fail();
    threads[2].join(), threads[3].join();
    launcher_.close();
    if (how == 1) fail();
    threads[0].join(), threads[1].join();
    check(launcher_.drained(std::chrono::nanoseconds(0)), "something is left");
    launcher_.release();
    std::lock_guard<std::mutex> lock(mutex_);
    check(memory_.empty(), "a launch was never told to be over");
  }

 private:
  void serve() {
    for (;;) {
      Job job = launcher_.next();
      if (job.type == Job::Type::none) return;
      if (job.type == Job::Type::tell) {
        for (const Report& report : job.reports) hear(report);
      } else if (job.type == Job::Type::prepare) {
        if (draw(50)) launcher_.go_on(job.launch, calls_of(job.launch));
        else over(job.launch);  // refused
      } else if (job.type == Job::Type::end) {
        if (failed_) launcher_.communicator()->abort();
        else if (!launcher_.communicator()->finalize().empty()) launcher_.communicator()->abort();
      }
    }
  }

  void hear(const Report& report) {
    switch (report.type) {
      case Report::Type::launched: {
        std::lock_guard<std::mutex> lock(mutex_);
        check(memory_.count(report.launch) && launched_.insert(report.launch).second, "told twice or after its end");
        break;
      }
      case Report::Type::failed: over(report.launch); [[fallthrough]];
      case Report::Type::broken: fail(); break;
      case Report::Type::over: over(report.launch);
    }
  }

  void over(uint64_t launch) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = memory_.find(launch);
    check(found != memory_.end(), "told to be over twice");
    if (found == memory_.end()) return;
    free(found->second);
    memory_.erase(found);
  }

  void fail() {
    failed_ = true;
    for (uint64_t launch : launcher_.stop()) over(launch);
    if (draw(2)) launcher_.communicator()->abort();  // as a rescue does
  }

  std::vector<Call> calls_of(uint64_t launch) {
    std::lock_guard<std::mutex> lock(mutex_);
    char* at = memory_.at(launch);
    std::vector<Call> calls(1 + draw(2), Call{Call::Kind::send, at, nullptr, 1, 7, 0, 1});
    if (draw(4) == 0) calls.push_back({Call::Kind::copy, at, at + 1, 1, 0, 0, 0});
    return calls;
  }

  void call(int which) {
    for (uint64_t number = uint64_t(which) + 2; number < 2 * launches; number += 2) {
      {
        std::lock_guard<std::mutex> lock(mutex_);
        memory_[number] = static_cast<char*>(malloc(2));
      }
      bool prepared = draw(5) == 0;
      if (!launcher_.add(number, prepared ? std::vector<Call>() : calls_of(number), nullptr, prepared)) {
        over(number);
        return;
      }
      if (draw(2)) launcher_.tell_launch(number);
      if (draw(2)) launcher_.join(number - draw(2) * 2, this);
      if (draw(3) == 0) rest(200);
    }
  }

  Device device_;
  Launcher launcher_;
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::map<uint64_t, char*> memory_;  // of the launches that are not over
  std::set<uint64_t> launched_;
};

}  // namespace

int main() {
  for (int i = 0; i < worlds && !wrong; i++) {
    World several[3];
    std::vector<std::thread> threads;
    for (auto& world : several) threads.emplace_back(&World::play, &world);
    for (auto& thread : threads) thread.join();
  }
  check(alive == 0, "a communicator is left");
  printf("%d launchers, %d launches each: %s\n", 3 * worlds, 2 * launches, wrong ? "WRONG" : "all told once");
  return wrong;
}
