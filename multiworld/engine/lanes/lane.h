// A lane: the one data connection to one peer, read and written without blocking, under the lock of the world.
//
// Payloads go from and to the callers' own memory, without a copy, for as long as their callers wait; `disown` and
// `redirect` end that. To a process on the same host (AF_UNIX) large payloads go through a ring in shared memory, once that
// process has accepted it; their headers, and all other frames, stay on the socket, and so does the order of all.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "core/core.h"
#include "ring.h"

namespace multiworld {

// Frames between two lanes, which their cores never see.
enum class LaneKind : uint8_t {
  ring = 64,    // with it comes the descriptor of a ring, which the sender would write to
  ring_is = 65, // the answer: flags = 1 if the ring is accepted
  chunk = 66,   // the next nbytes of the payload under way are in the ring
  read = 67,    // nbytes of the ring have been read, and are free again
};
// Added to the kind of a frame whose payload goes through the ring.
constexpr uint8_t through_ring = 0x80;

enum class Way : uint8_t { tcp, unix_socket, ring };

class Lane {
 public:
  // Takes over `fd`, with TCP_NODELAY if it is TCP. `on_end` is told when the connection ends, with the number of the error, 0 if the peer closed it.
  Lane(int fd, int peer, Core& core, std::function<void(Lane&, int)> on_end);
  ~Lane();
  Lane(const Lane&) = delete;

  // Go on with the connection of an earlier lane: what comes is dropped up to the mark, which goes out before our first frame.
  void begin_at(const std::string& mark);

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
  // How large payloads go to the peer.
  Way way() { return ring_accepted_ ? Way::ring : local() ? Way::unix_socket : Way::tcp; }
  // End it on our side: nothing is read or written any more.
  void cut();
  // Whether the connection was there when it was cut.
  bool whole() const { return whole_; }

  // Leave the descriptor to who goes on with it.
  void hand_over();
  // Close our descriptor, in a forked child as well; nothing else is touched.
  void abandon();

  bool backlog() const { return !backlog_.empty() || !said_.empty(); }
  // Whether there is something to write once the socket takes it; a payload may wait for room in the ring instead.
  bool blocked() const {
    return error_ || !said_.empty() || (!backlog_.empty() && (!backlog_.front().in_ring || room_));
  }
  // Whether somebody has to write something, now or later.
  bool owes() const { return !ended_ && (error_ || backlog()); }
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
    bool begins = false;   // a frame, nothing of which is written
    bool in_ring = false;  // it goes there
    std::string header;    // to be said before its first byte
  };
  struct Body {
    Header header{};
    Placement placement;
    uint64_t come = 0;
  };

  bool local();  // whether it is a socket of this host
  void say_mark();
  void write(Span head, Span first, Span second, SendOperation* send);
  void keep(Span (&spans)[3], uint64_t done, SendOperation* send);
  void keep_for_ring(Header header, Span first, Span second, SendOperation* send);
  void own_what_is_kept();
  void write_out();
  bool write_some(Span& span);
  bool fill_ring(Rest& rest);
  void failed(int error);
  void end(int error);
  int64_t read(char* body, uint64_t to_body, char* stage, uint64_t to_stage);
  void parse(const char* at, uint64_t size);
  uint64_t seek(const char* at, uint64_t size);
  bool begin(Body& body, const char*& at, uint64_t& size);
  void advance(uint64_t count);
  bool pump_once(uint64_t& budget);
  // How much of a payload is still to come, wanted or not.
  uint64_t left() const { return receiving() ? body_.header.nbytes - body_.come : skip_; }
  // Let the socket count as readable once so much has come, or the peer has closed it.
  void wake_for(int bytes);

  bool offers_ring();
  void say(LaneKind kind, uint16_t flags, uint64_t nbytes);
  void on_lane_frame(const Header& header);
  bool on_ring(uint64_t bytes);
  bool on_answer(bool accepted);
  bool on_chunk(uint64_t bytes);
  bool on_read(uint64_t bytes);
  void forget_passed();

  Core& core_;
  std::function<void(Lane&, int)> on_end_;
  std::deque<Rest> backlog_;
  std::string held_;
  Body body_;
  char partial_[sizeof(Header)];
  uint64_t fill_ = 0;  // bytes in it
  uint64_t skip_ = 0;  // bytes of an unwanted payload still to come
  std::string our_mark_;  // to be written before the first frame
  std::string mark_;   // what is waited for; empty once it has come
  std::string old_;    // the last bytes before it, in which it may have begun
  uint64_t sent_ = 0, received_ = 0;
  bool holding_ = false, deaf_ = false, ended_ = false, whole_ = false;
  int error_ = 0;  // of a write: what came before is read first

  int domain_ = 0;         // of the socket; 0 before it is asked for
  std::string said_;       // frames of the lane itself, written before the backlog where a frame begins in that
  std::unique_ptr<Ring> out_, in_;
  bool ring_offered_ = false, ring_accepted_ = false;
  uint64_t room_ = 0;      // of `out_`, as far as we have been told
  uint64_t allowed_ = 0;   // so much the peer may write to `in_` before it hears of us again
  uint64_t unsaid_ = 0;    // read from `in_`, and not said
  uint64_t ring_left_ = 0; // of the payload that comes through `in_` now
  int woken_for_ = 1;
  int passed_ = -1;        // a descriptor that came, for the frame that it came with
  bool was_offered_ = false;
};

}  // namespace multiworld
