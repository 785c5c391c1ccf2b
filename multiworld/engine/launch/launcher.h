// The launches of one communicator on a device: a queue, and two threads that serve it without the interpreter.
//
// They take turns: one of them at a time launches, and no other thread calls NCCL; one waits for the ends, in their order. Who has
// launched waits for the end, unless the other one does, and leaves launching to it: so a single operation wakes one thread. One of
// them at a time tells what happened: it leaves `next` with all that is to be told, while the other one goes on. No call but `next`,
// `go_on` and those of the communicator blocks, and nothing is called under the lock.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "launch/communicator.h"
#include "launch/events.h"

namespace multiworld {

// What happened to a launch.
struct Report {
  // `launched`: it is in the stream; told where that is asked for. `over`: its end has come, or cannot be waited for. `failed`: part of
  // it may be in the stream. `broken`: the communicator failed in the background.
  enum class Type : uint8_t { launched, over, failed, broken };
  Type type;
  uint64_t launch;
  std::string error;
};

// What a thread has to do for its owner before it calls `next` again.
struct Job {
  // `none`: all is over. `tell`: the reports. `prepare`: make the calls of a launch, then `go_on`, or not if that failed; only this
  // thread launches meanwhile. `look`: for failures in the background. `end`: end the communicator; nothing is launched any more.
  enum class Type : uint8_t { none, tell, prepare, look, end };
  Type type = Type::none;
  uint64_t launch = 0;
  std::vector<Report> reports = {};
};

// What is known of a launch whose end compiled code was to hear, and its owner is to hear now.
enum class Adopted : uint8_t {
  over = 0,     // it has ended well; that is told, or about to be
  told = 1,     // a report follows
  dropped = 2,  // it is not launched, and none follows
};

class Launcher {
 public:
  using Told = std::function<void(uint64_t)>;

  // The stream, and the communicator: null if all calls of launches are the owner's, who then looks for failures, too. Before any
  // launch.
  void open(const Functions& functions, void* stream, void* comm);

  // Launch after those before it, when `after` has happened; an event, or null. Its number is the owner's choice. With `prepared`, the
  // owner makes the calls. With `ended`, that is told of a good end, in a thread of the launcher's and instead of a report; and
  // `enqueued` when it is in the stream, which may be told later than that. False once nothing is launched any more.
  bool add(uint64_t number, std::vector<Call> calls, void* after, bool prepared, Told ended = {}, Told enqueued = {});
  // Report the end of one that was added with `ended`.
  Adopted adopt(uint64_t number);
  // Report when it is launched. True if it is already, and then nothing is reported.
  bool tell_launch(uint64_t number);
  // Let a stream wait for the end of one that was launched; an error in words. Nothing to do if that has come.
  std::string join(uint64_t number, void* stream);

  // In one of the two threads: serve, until there is something to do for the owner.
  Job next();
  void go_on(uint64_t number, std::vector<Call> calls);

  // Launch nothing any more, and end. The numbers of what will not be launched, but for those with `ended`: they are to be adopted.
  std::vector<uint64_t> stop();
  // End when all that was asked for is done.
  void close();
  // Whether nothing that was launched is left, now or within this time.
  bool drained(std::chrono::nanoseconds patience);
  // Null before there is one.
  Communicator* communicator();
  void release() { events_.release(); }

 private:
  struct Launch {
    Launch(Events& events) : events(events) {}
    ~Launch() {
      if (end) events.give_back(end);
    }
    Events& events;
    uint64_t number = 0;
    std::vector<Call> calls;
    void *after = nullptr, *end = nullptr;
    bool prepared = false, told = false, launched = false;
    Told ended, enqueued;
  };
  using LaunchRef = std::shared_ptr<Launch>;
  using Lock = std::unique_lock<std::mutex>;

  bool begin(Lock& lock, const LaunchRef& launch);
  void report(const Launch& launch, Report::Type type, std::string error);
  void put(Lock& lock, const LaunchRef& launch);
  std::string enqueue(Launch& launch);
  void leave(Lock& lock);
  void wait_for_end(Lock& lock);
  bool look(Lock& lock);
  Job left(Lock& lock, Job job);
  bool is_free(std::thread::id role) const { return role == std::thread::id(); }
  LaunchRef find(uint64_t number);

  Functions functions_;
  Events events_{functions_};
  void* stream_ = nullptr;
  std::unique_ptr<Communicator> communicator_;
  std::atomic<bool> cancelled_{false};

  std::mutex mutex_;
  std::condition_variable changed_;  // the two threads sleep here
  std::condition_variable emptied_;
  std::deque<LaunchRef> queued_, launched_;
  std::deque<Report> reports_;
  std::set<uint64_t> unheard_;  // of whom there was a report that `ended` was not told, until they are adopted
  LaunchRef launching_;
  std::thread::id launcher_, waiter_, teller_;  // who does it now
  bool halted_ = false;  // a launch failed: none follows it
  bool stopped_ = false, closing_ = false, ended_ = false;
  bool looks_ = false;  // whether something was launched since the last look
  std::chrono::steady_clock::time_point next_look_;
};

}  // namespace multiworld
