#include "launch/communicator.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace multiworld {

namespace {

using std::chrono::microseconds;
using Clock = std::chrono::steady_clock;

constexpr int success = 0, in_progress = 7, gone = -1;
// What is in progress is looked at without a pause at first, since most of it takes less time than the shortest sleep; and then
// after pauses that grow.
constexpr microseconds spin{100}, first_nap{20}, longest_nap{2000};
// A revoke may take that long before the abort.
constexpr microseconds revoke_patience{200'000};

bool failed(int code) { return code != success && code != in_progress; }

}  // namespace

std::string Communicator::launch(std::span<const Call> calls, void* stream) {
  int code;
  {
    std::lock_guard<std::mutex> inside(inside_);
    code = comm_ ? enqueue(calls, stream) : gone;
  }
  return failed(code) ? said(code) : settle();
}

// The group is the thread's own: it is closed whatever happens.
int Communicator::enqueue(std::span<const Call> calls, void* stream) {
  bool group = calls.size() > 1;
  int code = group ? functions_.ncclGroupStart() : success;
  if (failed(code)) return code;
  for (const Call& one : calls) {
    if (!failed(code)) code = call(one, stream);
  }
  int end = group ? functions_.ncclGroupEnd() : success;
  return failed(code) ? code : end;
}

int Communicator::call(const Call& c, void* stream) {
  switch (c.kind) {
    case Call::Kind::send: return functions_.ncclSend(c.from, c.count, c.dtype, c.peer, comm_, stream);
    case Call::Kind::recv: return functions_.ncclRecv(c.to, c.count, c.dtype, c.peer, comm_, stream);
    case Call::Kind::broadcast: return functions_.ncclBroadcast(c.from, c.to, c.count, c.dtype, c.peer, comm_, stream);
    case Call::Kind::all_reduce:
      return functions_.ncclAllReduce(c.from, c.to, c.count, c.dtype, c.reduction, comm_, stream);
    case Call::Kind::reduce:
      return functions_.ncclReduce(c.from, c.to, c.count, c.dtype, c.reduction, c.peer, comm_, stream);
    case Call::Kind::all_gather: return functions_.ncclAllGather(c.from, c.to, c.count, c.dtype, comm_, stream);
    case Call::Kind::reduce_scatter:
      return functions_.ncclReduceScatter(c.from, c.to, c.count, c.dtype, c.reduction, comm_, stream);
    case Call::Kind::copy: break;
  }
  return success;
}

std::string Communicator::settle() {
  auto began = Clock::now();
  microseconds nap{0};
  int code;
  while ((code = state()) == in_progress) {
    if (cancelled_) return "aborted while NCCL was at work";
    if (nap.count()) std::this_thread::sleep_for(nap);
    else sched_yield();
    if (nap.count() || Clock::now() - began > spin) nap = nap.count() ? std::min(2 * nap, longest_nap) : first_nap;
  }
  return code == success ? std::string() : said(code);
}

std::string Communicator::failure() {
  int code = state();
  return failed(code) ? said(code) : std::string();
}

std::string Communicator::finalize() {
  int code;
  {
    std::lock_guard<std::mutex> inside(inside_);
    code = comm_ ? functions_.ncclCommFinalize(comm_) : gone;
  }
  std::string error = failed(code) ? said(code) : settle();
  void* comm = error.empty() ? take() : nullptr;
  code = comm ? functions_.ncclCommDestroy(comm) : success;
  return failed(code) ? said(code) : error;
}

std::string Communicator::abort() {
  void* comm = take();
  if (!comm) return {};
  revoke(comm);
  int code = functions_.ncclCommAbort(comm);
  return failed(code) ? said(code) : std::string();
}

// Stop what is under way, on all members, where NCCL can; freeing comes after that, which does it alone if this fails.
void Communicator::revoke(void* comm) {
  if (!functions_.ncclCommRevoke || failed(functions_.ncclCommRevoke(comm, 0))) return;
  auto until = Clock::now() + revoke_patience;
  int code = success;
  while (functions_.ncclCommGetAsyncError(comm, &code) == success && code == in_progress && Clock::now() < until) {
    std::this_thread::sleep_for(longest_nap);
  }
}

int Communicator::state() {
  std::lock_guard<std::mutex> inside(inside_);
  if (!comm_) return gone;
  int found = success, code = functions_.ncclCommGetAsyncError(comm_, &found);
  return failed(code) ? code : found;
}

void* Communicator::take() {
  std::lock_guard<std::mutex> inside(inside_);
  return std::exchange(comm_, nullptr);
}

std::string Communicator::said(int code) {
  if (code == gone) return "the communicator was aborted";
  std::string text = "NCCL error " + std::to_string(code) + ", " + functions_.ncclGetErrorString(code);
  std::lock_guard<std::mutex> inside(inside_);
  const char* detail = comm_ ? functions_.ncclGetLastError(comm_) : nullptr;
  return detail && *detail ? text + ": " + detail : text;
}

}  // namespace multiworld
