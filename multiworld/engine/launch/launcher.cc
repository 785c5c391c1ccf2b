#include "launch/launcher.h"

#include <algorithm>
#include <utility>

namespace multiworld {

namespace {

// How often failures in the background are looked for while something is under way.
constexpr std::chrono::milliseconds look_every{100};
constexpr int device_to_device = 3;  // cudaMemcpyKind

}  // namespace

void Launcher::open(const Functions& functions, void* stream, void* comm) {
  Lock lock(mutex_);
  functions_ = functions, stream_ = stream;
  if (comm) communicator_ = std::make_unique<Communicator>(functions_, comm, cancelled_);
}

bool Launcher::add(uint64_t number, std::vector<Call> calls, void* after, bool prepared, Told ended, Told enqueued) {
  auto launch = std::make_shared<Launch>(events_);
  launch->number = number, launch->calls = std::move(calls), launch->after = after, launch->prepared = prepared;
  launch->ended = std::move(ended), launch->enqueued = std::move(enqueued);
  {
    Lock lock(mutex_);
    if (stopped_) return false;
    queued_.push_back(std::move(launch));
  }
  changed_.notify_one();
  return true;
}

Launcher::LaunchRef Launcher::find(uint64_t number) {
  if (launching_ && launching_->number == number) return launching_;
  for (auto* place : {&launched_, &queued_}) {
    for (auto& launch : *place) {
      if (launch->number == number) return launch;
    }
  }
  return nullptr;
}

Adopted Launcher::adopt(uint64_t number) {
  Lock lock(mutex_);
  LaunchRef launch = find(number);
  if (!launch) return unheard_.erase(number) ? Adopted::told : Adopted::over;
  launch->ended = nullptr;
  return stopped_ && std::erase(queued_, launch) ? Adopted::dropped : Adopted::told;
}

bool Launcher::tell_launch(uint64_t number) {
  Lock lock(mutex_);
  LaunchRef launch = find(number);
  if (!launch) return false;  // its end is reported, or was
  launch->told = true;
  return launch->launched;
}

std::string Launcher::join(uint64_t number, void* stream) {
  LaunchRef launch;
  {
    Lock lock(mutex_);
    launch = find(number);
    if (!launch || !launch->launched) return {};
  }
  return functions_.said("cudaStreamWaitEvent", functions_.cudaStreamWaitEvent(stream, launch->end, 0));
}

Job Launcher::next() {
  Lock lock(mutex_);
  leave(lock);
  for (;;) {
    if (is_free(teller_) && !reports_.empty()) {
      teller_ = std::this_thread::get_id();
      Job job{Job::Type::tell};
      job.reports.assign(std::make_move_iterator(reports_.begin()), std::make_move_iterator(reports_.end()));
      reports_.clear();
      return left(lock, std::move(job));
    }
    if (ended_ && launched_.empty()) return {};
    if (is_free(launcher_) && !ended_) {
      if (stopped_ || (closing_ && queued_.empty() && launched_.empty())) {
        stopped_ = ended_ = true;
        changed_.notify_all();
        return {Job::Type::end};
      }
      if (!queued_.empty() && !halted_) {
        LaunchRef launch = queued_.front();
        queued_.pop_front();
        if (begin(lock, launch)) return left(lock, {Job::Type::prepare, launch->number});
        continue;
      }
    }
    if (!launched_.empty() && is_free(waiter_)) {
      wait_for_end(lock);
      continue;
    }
    if (!looks_) {
      changed_.wait(lock);
    } else if (changed_.wait_until(lock, next_look_) == std::cv_status::timeout && look(lock)) {
      return {Job::Type::look, launched_.front()->number};
    }
  }
}

// Give up what this thread did outside.
void Launcher::leave(Lock&) {
  auto self = std::this_thread::get_id();
  if (launcher_ == self) launcher_ = {}, launching_ = nullptr;
  if (teller_ == self) teller_ = {};
}

// Leave what there is to do to the other thread.
Job Launcher::left(Lock& lock, Job job) {
  bool work = (!launched_.empty() && is_free(waiter_)) || (!queued_.empty() && is_free(launcher_)) || stopped_;
  lock.unlock();
  if (work) changed_.notify_one();
  return job;
}

// Launch it; true if its owner has to make its calls first.
bool Launcher::begin(Lock& lock, const LaunchRef& launch) {
  launcher_ = std::this_thread::get_id();
  launching_ = launch;
  if (!launched_.empty() && is_free(waiter_)) changed_.notify_one();
  lock.unlock();
  int code = launch->after ? functions_.cudaStreamWaitEvent(stream_, launch->after, 0) : 0;
  std::string error = functions_.said("cudaStreamWaitEvent", code);
  if (error.empty() && launch->prepared) {
    lock.lock();
    return true;
  }
  if (error.empty()) error = enqueue(*launch);
  lock.lock();
  launching_ = nullptr, launcher_ = {};
  if (!error.empty()) {
    halted_ = true;
    report(*launch, Report::Type::failed, std::move(error));
    return false;
  }
  put(lock, launch);
  if (launch->enqueued) {
    lock.unlock();
    launch->enqueued(launch->number);
    lock.lock();
  }
  return false;
}

// The calls of a launch are one group of NCCL, and its copies follow it.
std::string Launcher::enqueue(Launch& launch) {
  auto& calls = launch.calls;
  auto copies = std::stable_partition(calls.begin(), calls.end(), [](const Call& one) { return one.kind != Call::Kind::copy; });
  std::string error;
  if (copies != calls.begin()) error = communicator_->launch({calls.begin(), copies}, stream_);
  for (auto one = copies; error.empty() && one != calls.end(); one++) {
    int code = functions_.cudaMemcpyAsync(one->to, one->from, one->count, device_to_device, stream_);
    error = functions_.said("cudaMemcpyAsync", code);
  }
  if (error.empty()) error = events_.take(launch.end);
  return error.empty() ? functions_.said("cudaEventRecord", functions_.cudaEventRecord(launch.end, stream_)) : error;
}

// It is in the stream.
void Launcher::put(Lock&, const LaunchRef& launch) {
  launch->launched = true;
  if (launch->told) reports_.push_back({Report::Type::launched, launch->number, {}});
  launched_.push_back(launch);
  if (looks_) return;
  looks_ = true, next_look_ = std::chrono::steady_clock::now() + look_every;
  changed_.notify_one();  // see that one looks
}

void Launcher::go_on(uint64_t number, std::vector<Call> calls) {
  Lock lock(mutex_);
  LaunchRef launch = launching_;
  if (!launch || launch->number != number) return;
  launch->calls = std::move(calls);
  launch->prepared = false;
  launch->after = nullptr;
  begin(lock, launch);
}

void Launcher::wait_for_end(Lock& lock) {
  LaunchRef launch = launched_.front();
  waiter_ = std::this_thread::get_id();
  lock.unlock();
  std::string error = functions_.said("cudaEventSynchronize", functions_.cudaEventSynchronize(launch->end));
  lock.lock();
  waiter_ = {};
  launched_.pop_front();
  if (launched_.empty()) emptied_.notify_all();
  if (closing_ || stopped_) changed_.notify_one();
  if (!launch->ended || halted_ || stopped_ || !error.empty()) return report(*launch, Report::Type::over, std::move(error));
  lock.unlock();
  launch->ended(launch->number);
  lock.lock();
}

void Launcher::report(const Launch& launch, Report::Type type, std::string error) {
  if (launch.ended) unheard_.insert(launch.number);
  reports_.push_back({type, launch.number, std::move(error)});
}

// Look for a failure in the background; true if the owner has to.
bool Launcher::look(Lock& lock) {
  looks_ = !launched_.empty(), next_look_ = std::chrono::steady_clock::now() + look_every;
  if (!looks_ || !is_free(launcher_) || ended_) return false;
  launcher_ = std::this_thread::get_id();
  if (!communicator_) return true;
  lock.unlock();
  std::string error = communicator_->failure();
  lock.lock();
  launcher_ = {};
  if (!error.empty() && !halted_) {
    halted_ = true;
    reports_.push_back({Report::Type::broken, 0, std::move(error)});
  }
  return false;
}

std::vector<uint64_t> Launcher::stop() {
  std::vector<uint64_t> dropped;
  {
    Lock lock(mutex_);
    stopped_ = cancelled_ = true;
    std::erase_if(queued_, [&](const LaunchRef& launch) {
      if (!launch->ended) dropped.push_back(launch->number);
      return !launch->ended;
    });
  }
  changed_.notify_all();
  return dropped;
}

void Launcher::close() {
  {
    Lock lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
}

bool Launcher::drained(std::chrono::nanoseconds patience) {
  Lock lock(mutex_);
  return emptied_.wait_for(lock, patience, [this] { return launched_.empty(); });
}

Communicator* Launcher::communicator() {
  Lock lock(mutex_);
  return communicator_.get();
}

}  // namespace multiworld
