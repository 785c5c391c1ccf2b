// A lane: the one data connection to one peer, read and written without blocking, under the lock of the world.
//
// Payloads go from and to the callers' own memory, without a copy, for as long as their callers wait; `disown` and
// `redirect` end that.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <string>

#include "core/core.h"

namespace multiworld {

class Lane {
 public:
  // Takes over `fd`. `on_end` is told when the connection ends, with the number of the error, 0 if the peer closed it.
  Lane(int fd, int peer, Core& core, std::function<void(Lane&, int)> on_end);
  ~Lane();
  Lane(const Lane&) = delete;

  void put(const Header& header, Span first, Span second, SendOperation* send);
  void flush();
  // Read and handle what is there, `budget` bytes of it at most.
  void pump(uint64_t budget);
  void disown(SendOperation& send);
  bool receiving() const { return body_.placement.wanted; }
  void redirect(const char* whole, char* own, uint64_t length);
  // Let frames without a payload go out together, until `release`.
  void hold() { holding_ = true; }
  void release();

  // Drop what comes from now on; what is still to be written goes out.
  void stop_reading();
  // Write the rest and say that nothing follows; whether the peer's machine has all of it. What comes is dropped.
  bool linger();
  // End it on our side: nothing is read or written any more.
  void cut();

  // Close our descriptor, in a forked child; nothing else is touched.
  void abandon();

  bool backlog() const { return !backlog_.empty(); }
  bool ended() const { return ended_; }
  uint64_t sent() const { return sent_; }
  uint64_t received() const { return received_; }

  int fd;  // -1 once it is abandoned
  const int peer;
  bool watched_for_writing = false;  // the mover's

 private:
  struct Rest {
    Span span;
    Memory own;          // what `span` points to, unless it is the caller's
    OperationRef send;   // the one whose last byte this has
    OperationRef owner;  // the one whose memory it is
  };
  struct Body {
    Header header{};
    Placement placement;
    uint64_t come = 0;
  };

  void write(Span head, Span first, Span second, SendOperation* send);
  void keep(Span (&spans)[3], uint64_t done, SendOperation* send);
  void end(int error);
  void parse(const char* at, uint64_t size);
  void advance(uint64_t count);

  Core& core_;
  std::function<void(Lane&, int)> on_end_;
  std::deque<Rest> backlog_;
  std::string held_;
  Body body_;
  char partial_[sizeof(Header)];
  uint64_t fill_ = 0;  // bytes in it
  uint64_t skip_ = 0;  // bytes of an unwanted payload still to come
  uint64_t sent_ = 0, received_ = 0;
  bool holding_ = false, deaf_ = false, ended_ = false;
};

}  // namespace multiworld
