// The client library of SwitchML behind a C interface, for library.py.
//
// Compiled against an installed client library by `python -m multiworld.switchml compile`. The library is C++, static,
// has one context per process, and ends the process on what it takes for mistakes of the caller; here they are results.

#include <switchml/context.h>

#ifdef GLOG_SAYS_WHETHER_IT_IS_INITIALIZED
#include <glog/logging.h>
#endif

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

using switchml::Context;
using switchml::JobStatus;

namespace {

enum Outcome { kFinished = 0, kFailed = 1, kTimeout = 2, kStopped = 3 };

std::mutex mutex;  // held by what needs the context to stay as it is
bool running = false;
int unfinished = 0;  // jobs that are not known to have finished well

// A job can only be waited for without a bound. A thread does that, so that others can wait with one.
class Waiter {
 public:
  Waiter() : thread_([this] { run(); }) { thread_.detach(); }

  Outcome wait(std::shared_ptr<switchml::Job> job, double seconds) {
    auto entry = std::make_shared<Entry>(Entry{std::move(job), false});
    std::unique_lock<std::mutex> lock(mutex_);
    queue_.push_back(entry);
    changed_.notify_all();
    if (!changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return entry->done; })) return kTimeout;
    return entry->job->GetJobStatus() == JobStatus::FINISHED ? kFinished : kFailed;
  }

 private:
  struct Entry {
    std::shared_ptr<switchml::Job> job;
    bool done;
  };

  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !queue_.empty(); });
      auto entry = queue_.front();
      queue_.pop_front();
      lock.unlock();
      entry->job->WaitToComplete();
      lock.lock();
      entry->done = true;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Entry>> queue_;
  std::thread thread_;
};

Waiter& waiter() {
  static Waiter* made = new Waiter;  // never destroyed: its thread may wait for a job until the process ends
  return *made;
}

void start(const char* path, int rank, int size) {
  Context& context = Context::GetInstance();
  if (context.GetContextState() != Context::ContextState::CREATED)
    throw std::runtime_error("the client library was started before in this process, and cannot be started again");
  // The context's own object, not one made here: its layout depends on the macros that the library was compiled with
  // (TIMEOUTS, DUMMY, ...), except for what it begins with, which is rank and num_workers.
  auto& config = const_cast<switchml::Config&>(context.GetConfig());
  if (!config.LoadFromFile(path))
    throw std::runtime_error(*path ? std::string("the configuration file ") + path + " cannot be read"
                                   : "there is no configuration file; the client library looks for /etc/switchml.cfg, "
                                     "./switchml.cfg and ./switchml-<hostname>.cfg");
  config.general_.rank = static_cast<uint16_t>(rank);
  config.general_.num_workers = static_cast<uint16_t>(size);
  if (!context.Start(&config)) throw std::runtime_error("the context did not start; the client library's log says why");
}

}  // namespace

#ifdef GLOG_SAYS_WHETHER_IT_IS_INITIALIZED
// The client library uses an internal function of glog, which glog hides from 0.6 on; there it has a public one.
namespace google {
namespace glog_internal_namespace_ {
__attribute__((weak)) bool IsGoogleLoggingInitialized() { return google::IsGoogleLoggingInitialized(); }
}  // namespace glog_internal_namespace_
}  // namespace google
#endif

extern "C" {

// The version of this interface.
int mw_switchml_interface() { return 1; }

// Start the context. `path` is a configuration file, empty for those that the library looks for. Returns 0, or -1 with
// the reason in `error` (of `length` bytes).
int mw_switchml_start(const char* path, int rank, int size, char* error, size_t length) {
  std::lock_guard<std::mutex> lock(mutex);
  try {
    start(path, rank, size);
    running = true;
    return 0;
  } catch (const std::exception& thrown) {
    std::strncpy(error, thrown.what(), length - 1);
    error[length - 1] = '\0';
    return -1;
  }
}

// Sum `count` elements over all workers and wait at most `seconds`; see Outcome. After a timeout the library still has
// both pointers. `type` is 0 for float32, 1 for int32.
int mw_switchml_sum(void* in, void* out, uint64_t count, int type, double seconds) {
  std::shared_ptr<switchml::Job> job;
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (!running) return kStopped;
    ++unfinished;
    job = Context::GetInstance().AllReduceAsync(in, out, count, type == 0 ? switchml::FLOAT32 : switchml::INT32,
                                                switchml::AllReduceOperation::SUM);
  }
  const Outcome outcome = waiter().wait(std::move(job), seconds);
  std::lock_guard<std::mutex> lock(mutex);
  if (outcome == kFinished) --unfinished;
  return outcome;
}

// Stop the context; jobs that are not done fail.
void mw_switchml_stop() {
  std::lock_guard<std::mutex> lock(mutex);
  if (!running) return;
  running = false;
  // A job counts as finished a moment before the library's thread is done with it, which needs a lock that Stop() holds
  // while it joins that thread.
  if (unfinished == 0) Context::GetInstance().WaitForAllJobs();
  Context::GetInstance().Stop();
}
}
