// One communicator of NCCL, which is non-blocking: no call waits for a peer, except in versions that connect in one.
//
// Errors are texts; none is success. Every call may block, and none is made under a lock that a caller of operations takes.
#pragma once
#include <atomic>
#include <mutex>
#include <span>
#include <string>

#include "launch/functions.h"

namespace multiworld {

// One call in the stream.
struct Call {
  enum class Kind : uint8_t { send, recv, broadcast, all_reduce, reduce, all_gather, reduce_scatter, copy };
  Kind kind;
  const void* from;
  void* to;
  uint64_t count;  // of elements, or of bytes for a copy
  int dtype;
  int reduction;
  int peer;  // or root
};

class Communicator {
 public:
  // What was begun is not waited for any more once `cancelled` is set.
  Communicator(const Functions& functions, void* comm, const std::atomic<bool>& cancelled)
      : functions_(functions), comm_(comm), cancelled_(cancelled) {}

  // Put the calls, which are no copies, into a stream as one group; on return they are there.
  std::string launch(std::span<const Call> calls, void* stream);
  // Wait until what was begun is done.
  std::string settle();
  // A failure in the background.
  std::string failure();
  // Free it in good order, when nothing is under way here.
  std::string finalize();
  // Stop its kernels and free it; after the end of a call that another thread is inside. Harmless if it is gone.
  std::string abort();

 private:
  int enqueue(std::span<const Call> calls, void* stream);
  int call(const Call& call, void* stream);
  int state();
  void* take();
  void revoke(void* comm);
  std::string said(int code);

  const Functions& functions_;
  std::mutex inside_;  // held in every call that uses the communicator: an abort frees it
  void* comm_;
  const std::atomic<bool>& cancelled_;
};

}  // namespace multiworld
