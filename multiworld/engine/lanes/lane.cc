#include "lane.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace multiworld {
namespace {

constexpr size_t stage_bytes = 16 * 1024;
// Frames that go out together save the peer a turn each; more than these keep it waiting.
constexpr size_t together_bytes = 8 * sizeof(Header);
// Shorter payloads are faster on the socket.
constexpr uint64_t least_in_ring = 16 * 1024;
// A payload is said to be in the ring in chunks, so that the peer reads one while we write the next.
constexpr uint64_t chunk_bytes = 128 * 1024;
// The peer is told of room in steps: each costs it a turn.
constexpr uint64_t step_bytes = Ring::size / 4;
// So much is heard of a peer that has closed its end: more than socket and ring hold.
constexpr uint64_t most_heard_bytes = 16 << 20;
// Where more of a payload is to come over TCP, the kernel wakes us for so much: a turn of the mover.
constexpr int wake_bytes = 256 * 1024;

// Before Linux 5.12 a socket that is full of small packets might not count as readable.
bool wakes_by_turns() {
  static const bool does = [] {
    utsname about{};
    int major = 0, minor = 0;
    return uname(&about) == 0 && sscanf(about.release, "%d.%d", &major, &minor) == 2 &&
           (major > 5 || (major == 5 && minor >= 12));
  }();
  return does;
}

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

bool is_of_lane(uint8_t kind) { return kind >= uint8_t(LaneKind::ring) && kind <= uint8_t(LaneKind::read); }

std::string bytes_of(const Header& header) { return {reinterpret_cast<const char*>(&header), sizeof header}; }

}  // namespace

Lane::Lane(int fd, int peer, Core& core, std::function<void(Lane&, int)> on_end)
    : fd(fd), peer(peer), core_(core), on_end_(std::move(on_end)) {}

void Lane::hand_over() {
  wake_for(1);
  fd = -1;
}

Lane::~Lane() { abandon(); }

void Lane::abandon() {
  forget_passed();
  if (fd >= 0) close(fd);
  fd = -1;
}

// Asked when it is first needed: an engine begins without a call for each of its lanes.
bool Lane::local() {
  if (domain_) return domain_ == AF_UNIX;
  socklen_t size = sizeof domain_;
  getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain_, &size);
  return domain_ == AF_UNIX;
}

void Lane::begin_at(const std::string& mark) { our_mark_ = mark_ = mark; }

// Before the first frame: what is written from here on is of this lane.
void Lane::say_mark() {
  if (our_mark_.empty()) return;
  std::string mark;
  mark.swap(our_mark_);
  write({mark.data(), mark.size()}, {}, {}, nullptr);
  for (Rest& rest : backlog_) rest.begins = false;  // no frame of the lane's own comes before it
}

// ---- writing

void Lane::put(const Header& header, Span first, Span second, SendOperation* send) {
  if (ended_ || error_) return;
  say_mark();
  if (ended_ || error_) return;
  sent_ += sizeof header + first.size + second.size;
  Span head{reinterpret_cast<const char*>(&header), sizeof header};
  if (holding_ && !send && !first.size && !second.size) {
    held_.append(head.data, head.size);
    if (held_.size() >= together_bytes) {
      release();
      holding_ = true;
    }
    return;
  }
  if (!held_.empty()) {
    bool holding = holding_;
    release();
    holding_ = holding;
    if (ended_) return;
  }
  if (first.size + second.size >= least_in_ring && local() && offers_ring()) {
    keep_for_ring(header, first, second, send);
  } else {
    write(head, first, second, send);
  }
}

void Lane::release() {
  holding_ = false;
  std::string held;
  held.swap(held_);
  if (!held.empty() && !ended_) write({held.data(), held.size()}, {}, {}, nullptr);
}

void Lane::write(Span head, Span first, Span second, SendOperation* send) {
  if (error_) return;
  Span spans[3] = {head, first, second};
  uint64_t done = 0;
  if (!backlog()) {
    iovec parts[3];
    for (int i = 0; i < 3; i++) parts[i] = {const_cast<char*>(spans[i].data), spans[i].size};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 3;
    ssize_t got = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (got < 0 && !would_block(errno)) return failed(errno);
    if (got > 0) done = uint64_t(got);
    if (done == head.size + first.size + second.size) {
      if (send) core_.complete(*send);
      return;
    }
  }
  try {
    keep(spans, done, send);
  } catch (const std::bad_alloc&) {  // half a frame is out
    end(ENOMEM);
  }
}

// Write the rest later, from the memory of `send`, or from a copy.
void Lane::keep(Span (&spans)[3], uint64_t done, SendOperation* send) {
  for (Span& span : spans) {
    uint64_t written = std::min(done, span.size);
    done -= written;
    if (written == span.size) continue;
    Rest rest;
    rest.span = {span.data + written, span.size - written};
    rest.begins = &span == spans && !written;
    if (send && &span != spans) {
      rest.owner = send->shared_from_this();
    } else {
      rest.own = Memory::copy(rest.span);
      rest.span.data = rest.own.data();
    }
    backlog_.push_back(std::move(rest));
  }
  if (send) backlog_.back().send = send->shared_from_this();
}

// Put a payload into the ring as far as there is room, the rest later.
void Lane::keep_for_ring(Header header, Span first, Span second, SendOperation* send) {
  header.kind |= through_ring;
  try {
    std::string lead = bytes_of(header);
    for (Span span : {first, second}) {
      if (!span.size) continue;
      Rest rest;
      rest.span = span;
      rest.in_ring = true;
      rest.header.swap(lead);
      if (send) rest.owner = send->shared_from_this();
      backlog_.push_back(std::move(rest));
    }
    if (send) backlog_.back().send = send->shared_from_this();
    write_out();
    own_what_is_kept();
  } catch (const std::bad_alloc&) {
    end(ENOMEM);
  }
}

// Copy what is left of memory that is no send's: it is its caller's again.
void Lane::own_what_is_kept() {
  for (Rest& rest : backlog_) {
    if (rest.owner || rest.own) continue;
    rest.own = Memory::copy(rest.span);
    rest.span.data = rest.own.data();
  }
}

void Lane::flush() {
  if (!error_) return write_out();
  // The peer has closed its end; what it said before that is still to be heard.
  uint64_t begun = received_, before = UINT64_MAX;
  while (!ended_ && received_ != before && received_ - begun < most_heard_bytes) {
    before = received_;
    pump(most_heard_bytes);
  }
  end(error_);
}

void Lane::write_out() {
  while (!ended_ && !error_) {
    bool between = backlog_.empty() || backlog_.front().begins || backlog_.front().in_ring;  // two frames
    if (between && said_.empty() && unsaid_ >= step_bytes) {
      say(LaneKind::read, 0, unsaid_);
      allowed_ += unsaid_;
      unsaid_ = 0;
    }
    if (between && !said_.empty()) {
      Span said{said_.data(), said_.size()};
      bool all = write_some(said);
      said_.erase(0, said_.size() - said.size);
      if (!all) return;
    }
    if (backlog_.empty()) return;
    Rest& rest = backlog_.front();
    uint64_t before = rest.span.size;
    bool goes_on = rest.in_ring ? fill_ring(rest) : write_some(rest.span);
    rest.begins &= rest.span.size == before;  // no frame of the lane's own comes into a part of a header
    if (!goes_on) return;
    if (rest.span.size) continue;
    OperationRef done = std::move(rest.send);
    backlog_.pop_front();
    if (done) core_.complete(*done);
  }
}

// Write once; whether all of it is written, and more can be.
bool Lane::write_some(Span& span) {
  ssize_t got;
  do got = send(fd, span.data, span.size, MSG_DONTWAIT | MSG_NOSIGNAL);
  while (got < 0 && errno == EINTR);
  if (got < 0) {
    if (!would_block(errno)) failed(errno);
    return false;
  }
  span.data += got;
  span.size -= uint64_t(got);
  return !span.size;
}

// Put a chunk into the ring and say so; false if there is no room.
bool Lane::fill_ring(Rest& rest) {
  uint64_t bytes = std::min({rest.span.size, room_, chunk_bytes});
  if (!bytes) return false;
  said_ += rest.header;
  rest.header.clear();
  out_->write(rest.span.data, bytes);
  room_ -= bytes;
  rest.span.data += bytes;
  rest.span.size -= bytes;
  say(LaneKind::chunk, 0, bytes);
  return true;
}

void Lane::say(LaneKind kind, uint16_t flags, uint64_t nbytes) {
  sent_ += sizeof(Header);
  said_ += bytes_of({uint8_t(kind), 0, flags, 0, 0, nbytes});
}

void Lane::disown(SendOperation& send) {
  for (Rest& rest : backlog_) {
    if (rest.owner.get() != &send) continue;
    try {
      rest.own = Memory::copy(rest.span);
    } catch (const std::bad_alloc&) {
      return end(ENOMEM);
    }
    rest.span.data = rest.own.data();
    rest.owner = nullptr;
  }
}

// ---- the end

bool Lane::linger() {
  flush();
  if (backlog()) pump(stage_bytes);  // where the peer says that there is room
  if (backlog()) return false;
  ended_ = true;
  shutdown(fd, SHUT_WR);
  // To close a socket with something unread resets the connection, and what is on its way is lost. Not so on one host.
  char dropped[stage_bytes];
  ssize_t got;
  while ((got = recv(fd, dropped, sizeof dropped, MSG_DONTWAIT)) > 0) {}
  int unacknowledged = 0;
  if (local() || got == 0 || !would_block(errno) || ioctl(fd, SIOCOUTQ, &unacknowledged) != 0) return true;
  return unacknowledged <= 1;  // the end itself counts as one
}

void Lane::cut() {
  if (!ended_) whole_ = !error_;
  ended_ = true;
  backlog_.clear();
  held_.clear();
  said_.clear();
  body_ = {};
  out_.reset();
  in_.reset();
  forget_passed();
}

void Lane::failed(int error) {
  if (error != EPIPE && error != ECONNRESET) return end(error);
  error_ = error;
  backlog_.clear();
  held_.clear();
  said_.clear();
}

void Lane::end(int error) {
  if (ended_) return;
  cut();
  whole_ = false;
  on_end_(*this, error);
}

// ---- reading

void Lane::redirect(const char* whole, char* own, uint64_t length) {
  if (!receiving()) return;
  if (!own) {
    if (!ring_left_) skip_ = length - body_.come;
    body_ = {};
    return;
  }
  if (body_.come) memcpy(own, whole, body_.come);
  body_.placement.to = own;
}

void Lane::stop_reading() {
  deaf_ = true;
  if (receiving()) redirect(nullptr, nullptr, body_.header.nbytes);
}

void Lane::pump(uint64_t budget) {
  while (!ended_ && pump_once(budget)) {
  }
  if (!ended_ && !local() && wakes_by_turns()) wake_for(left() >= wake_bytes ? wake_bytes : 1);
}

// Whether there may be more to read.
bool Lane::pump_once(uint64_t& budget) {
  // What follows a payload comes with its last byte.
  char stage[stage_bytes];
  memcpy(stage, partial_, fill_);
  uint64_t wanted = receiving() && !ring_left_ ? body_.header.nbytes - body_.come : 0;
  uint64_t to_body = std::min(wanted, budget);
  uint64_t to_stage = to_body == wanted ? stage_bytes - fill_ : 0;
  int64_t got = read(body_.placement.to + body_.come, to_body, stage + fill_, to_stage);
  if (got <= 0) return false;
  uint64_t count = uint64_t(got), of_body = std::min(count, to_body);
  uint64_t staged = fill_ + count - of_body, before = received_;
  received_ += count;
  fill_ = 0;
  if (of_body) advance(of_body);
  if (staged && !ended_) parse(stage, staged);
  uint64_t come = received_ - before;  // through a ring, too
  if (count < to_body + to_stage || come >= budget) return false;  // the socket was empty; or others have their turn
  budget -= come;
  return true;
}

void Lane::wake_for(int bytes) {
  if (bytes == woken_for_) return;
  woken_for_ = bytes;
  setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
}

// Read once; what is not above 0 is dealt with.
int64_t Lane::read(char* body, uint64_t to_body, char* stage, uint64_t to_stage) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  iovec parts[2] = {{body, to_body}, {stage, to_stage}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  if (local()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_LEN(sizeof(int));  // room for one; the kernel drops others
  }
  ssize_t got;
  do got = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  if (got == 0 || (got < 0 && !would_block(errno))) end(got < 0 ? errno : error_);
  cmsghdr* passed = got > 0 && local() ? CMSG_FIRSTHDR(&message) : nullptr;
  if (passed && passed->cmsg_level == SOL_SOCKET && passed->cmsg_type == SCM_RIGHTS) {
    forget_passed();
    memcpy(&passed_, CMSG_DATA(passed), sizeof passed_);
  }
  return got;
}

void Lane::forget_passed() {
  if (passed_ >= 0) close(passed_);
  passed_ = -1;
}

void Lane::advance(uint64_t count) {
  body_.come += count;
  if (body_.come < body_.header.nbytes) return;
  Body body;
  std::swap(body, body_);
  core_.arrived(peer, body.header, body.placement);
}

// Look for the mark; how many bytes lie before what follows it.
uint64_t Lane::seek(const char* at, uint64_t size) {
  uint64_t before = old_.size();
  old_.append(at, size);
  size_t found = old_.find(mark_);
  if (found == std::string::npos) {
    old_.erase(0, old_.size() - std::min(old_.size(), mark_.size() - 1));
    forget_passed();
    return size;
  }
  uint64_t end = found + mark_.size() - before;
  if (end == size) forget_passed();  // else it came with what follows
  mark_.clear();
  old_.clear();
  return end;
}

void Lane::parse(const char* at, uint64_t size) {
  if (!mark_.empty()) {
    uint64_t dropped = seek(at, size);
    at += dropped;
    size -= dropped;
  }
  bool together = size >= 2 * sizeof(Header);  // the answers to what came together go out together
  if (together) hold();
  while (!ended_) {
    uint64_t skipped = std::min(skip_, size);
    skip_ -= skipped;
    at += skipped;
    size -= skipped;
    if (size < sizeof(Header)) break;
    Body body;
    memcpy(&body.header, at, sizeof(Header));
    at += sizeof(Header);
    size -= sizeof(Header);
    if (local() && is_of_lane(body.header.kind)) {
      on_lane_frame(body.header);
    } else if (!begin(body, at, size)) {
      break;
    }
  }
  if (!ended_ && size < sizeof(Header)) {
    memcpy(partial_, at, size);
    fill_ = size;
  }
  if (together) release();
}

// Begin with a frame; false if the rest of its payload is to come on the socket.
bool Lane::begin(Body& body, const char*& at, uint64_t& size) {
  uint64_t length = body.header.nbytes;
  bool by_ring = local() && body.header.kind & through_ring;
  if (by_ring) body.header.kind &= uint8_t(~through_ring);
  if (ring_left_ || (by_ring && !(in_ && length && has_payload(body.header.kind)))) {
    core_.protocol_error(peer, "a frame where a payload in shared memory has to go on");
    return true;
  }
  try {
    if (!deaf_) body.placement = core_.on_frame(peer, body.header);
  } catch (const std::bad_alloc&) {
    core_.protocol_error(peer, "a message of " + std::to_string(length) + " bytes, for which there is no memory");
  }
  if (by_ring) {
    ring_left_ = length;
    if (body.placement.wanted) body_ = body;
    return true;
  }
  if (!body.placement.wanted) {
    skip_ = has_payload(body.header.kind) ? length : 0;
    return true;
  }
  body.come = std::min(length, size);
  if (body.come) memcpy(body.placement.to, at, body.come);
  at += body.come;
  size -= body.come;
  if (body.come < length) {
    body_ = body;
    return false;
  }
  core_.arrived(peer, body.header, body.placement);
  return true;
}

// ---- the rings

// Whether large payloads go through the ring; before the first one it is offered to the peer.
bool Lane::offers_ring() {
  if (ring_offered_ || backlog()) return ring_accepted_;
  ring_offered_ = true;
  int descriptor = -1;
  out_ = Ring::make(descriptor);
  if (!out_) return false;
  Header header{uint8_t(LaneKind::ring), 0, 0, 0, 0, Ring::size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec part{&header, sizeof header};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* passed = CMSG_FIRSTHDR(&message);
  *passed = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
  memcpy(CMSG_DATA(passed), &descriptor, sizeof descriptor);
  ssize_t got = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  int error = errno;
  close(descriptor);
  if (got > 0) {
    sent_ += sizeof header;
    said_.append(reinterpret_cast<const char*>(&header) + got, sizeof header - size_t(got));
    return false;
  }
  out_.reset();
  ring_offered_ = !would_block(error);  // else it is offered with the next payload
  return false;
}

void Lane::on_lane_frame(const Header& header) {
  bool fits = false;
  switch (LaneKind(header.kind)) {
    case LaneKind::ring: fits = on_ring(header.nbytes); break;
    case LaneKind::ring_is: fits = on_answer(header.flags); break;
    case LaneKind::chunk: fits = on_chunk(header.nbytes); break;
    case LaneKind::read: fits = on_read(header.nbytes); break;
  }
  if (!fits && !ended_) core_.protocol_error(peer, "a frame about shared memory that does not fit");
}

// The peer would write to a ring of so many bytes. One of another length is of another version.
bool Lane::on_ring(uint64_t bytes) {
  if (was_offered_) return false;
  was_offered_ = true;
  bool passed = passed_ >= 0 && bytes == Ring::size;  // none may have been to be had here
  if (passed && !Ring::is_safe(passed_)) return false;
  if (passed) in_ = Ring::map(passed_);
  forget_passed();
  allowed_ = in_ ? Ring::size : 0;
  say_mark();
  say(LaneKind::ring_is, in_ != nullptr, 0);
  write_out();
  return true;
}

bool Lane::on_answer(bool accepted) {
  if (!out_ || ring_accepted_) return false;
  ring_accepted_ = accepted;
  room_ = accepted ? Ring::size : 0;
  if (!accepted) out_.reset();
  return true;
}

bool Lane::on_chunk(uint64_t bytes) {
  if (!bytes || bytes > ring_left_ || bytes > allowed_) return false;
  allowed_ -= bytes;
  unsaid_ += bytes;
  ring_left_ -= bytes;
  received_ += bytes;
  in_->read(receiving() ? body_.placement.to + body_.come : nullptr, bytes);
  if (receiving()) advance(bytes);
  if (unsaid_ >= step_bytes) write_out();
  return true;
}

bool Lane::on_read(uint64_t bytes) {
  if (!ring_accepted_ || !bytes || bytes > Ring::size - room_) return false;
  room_ += bytes;
  write_out();
  return true;
}

}  // namespace multiworld
