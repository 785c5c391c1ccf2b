#include "lane.h"

#include <errno.h>
#include <netinet/in.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace multiworld {
namespace {

constexpr size_t stage_bytes = 16 * 1024;
// Frames that go out together save the peer a turn each; more than these keep it waiting.
constexpr size_t together_bytes = 8 * sizeof(Header);

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

Lane::Lane(int fd, int peer, Core& core, std::function<void(Lane&, int)> on_end)
    : fd(fd), peer(peer), core_(core), on_end_(std::move(on_end)) {
  int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

Lane::~Lane() { abandon(); }

void Lane::abandon() {
  if (fd >= 0) close(fd);
  fd = -1;
}

void Lane::put(const Header& header, Span first, Span second, SendOperation* send) {
  if (ended_) return;
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
  write(head, first, second, send);
}

void Lane::release() {
  holding_ = false;
  std::string held;
  held.swap(held_);
  if (!held.empty() && !ended_) write({held.data(), held.size()}, {}, {}, nullptr);
}

void Lane::write(Span head, Span first, Span second, SendOperation* send) {
  Span spans[3] = {head, first, second};
  uint64_t done = 0;
  if (backlog_.empty()) {
    iovec parts[3];
    for (int i = 0; i < 3; i++) parts[i] = {const_cast<char*>(spans[i].data), spans[i].size};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 3;
    ssize_t got = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (got < 0 && !would_block(errno)) return end(errno);
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
    Rest rest{{span.data + written, span.size - written}, {}, nullptr, nullptr};
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

void Lane::flush() {
  while (!backlog_.empty() && !ended_) {
    Rest& rest = backlog_.front();
    ssize_t got = send(fd, rest.span.data, rest.span.size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && would_block(errno)) return;
    if (got < 0) return end(errno);
    rest.span.data += got;
    rest.span.size -= uint64_t(got);
    if (rest.span.size) return;
    OperationRef done = std::move(rest.send);
    backlog_.pop_front();
    if (done) core_.complete(*done);
  }
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

void Lane::redirect(const char* whole, char* own, uint64_t length) {
  if (!receiving()) return;
  if (!own) {
    skip_ = length - body_.come;
    body_ = {};
    return;
  }
  if (body_.come) memcpy(own, whole, body_.come);
  body_.placement.to = own;
}

void Lane::stop_reading() {
  deaf_ = true;
  body_ = {};
}

bool Lane::linger() {
  flush();
  if (backlog()) return false;
  ended_ = true;
  shutdown(fd, SHUT_WR);
  // To close a socket with something unread resets the connection, and what is on its way is lost.
  char dropped[stage_bytes];
  ssize_t got;
  while ((got = recv(fd, dropped, sizeof dropped, MSG_DONTWAIT)) > 0) {}
  int unacknowledged = 0;
  if (got == 0 || !would_block(errno) || ioctl(fd, SIOCOUTQ, &unacknowledged) != 0) return true;
  return unacknowledged <= 1;  // the end itself counts as one
}

void Lane::cut() {
  ended_ = true;
  backlog_.clear();
  held_.clear();
  body_ = {};
}

void Lane::end(int error) {
  if (ended_) return;
  cut();
  on_end_(*this, error);
}

void Lane::pump(uint64_t budget) {
  while (!ended_) {
    // What follows a payload comes with its last byte.
    char stage[stage_bytes];
    memcpy(stage, partial_, fill_);
    uint64_t wanted = receiving() ? body_.header.nbytes - body_.come : 0;
    uint64_t to_body = std::min(wanted, budget);
    uint64_t to_stage = to_body == wanted ? stage_bytes - fill_ : 0;
    iovec parts[2] = {{body_.placement.to + body_.come, to_body}, {stage + fill_, to_stage}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    ssize_t got = recvmsg(fd, &message, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return would_block(errno) ? void() : end(errno);
    if (got == 0) return end(0);
    uint64_t count = uint64_t(got), of_body = std::min(count, to_body);
    uint64_t staged = fill_ + count - of_body;
    received_ += count;
    fill_ = 0;
    if (of_body && !deaf_) advance(of_body);
    if (staged && !deaf_ && !ended_) parse(stage, staged);
    if (count < to_body + to_stage || count >= budget) return;  // the socket was empty; or others have their turn
    budget -= count;
  }
}

void Lane::advance(uint64_t count) {
  body_.come += count;
  if (body_.come < body_.header.nbytes) return;
  Body body;
  std::swap(body, body_);
  core_.arrived(peer, body.header, body.placement);
}

void Lane::parse(const char* at, uint64_t size) {
  bool together = size >= 2 * sizeof(Header);  // the answers to what came together go out together
  if (together) hold();
  while (!ended_ && !deaf_) {
    uint64_t skipped = std::min(skip_, size);
    skip_ -= skipped;
    at += skipped;
    size -= skipped;
    if (size < sizeof(Header)) break;
    Body body;
    memcpy(&body.header, at, sizeof(Header));
    at += sizeof(Header);
    size -= sizeof(Header);
    uint64_t length = body.header.nbytes;
    try {
      body.placement = core_.on_frame(peer, body.header);
    } catch (const std::bad_alloc&) {
      core_.protocol_error(peer, "a message of " + std::to_string(length) + " bytes, for which there is no memory");
    }
    if (!body.placement.wanted) {
      skip_ = has_payload(body.header.kind) ? length : 0;
      continue;
    }
    body.come = std::min(length, size);
    if (body.come) memcpy(body.placement.to, at, body.come);
    at += body.come;
    size -= body.come;
    if (body.come < length) {
      body_ = body;
      break;
    }
    core_.arrived(peer, body.header, body.placement);
  }
  if (!ended_ && size < sizeof(Header)) {
    memcpy(partial_, at, size);
    fill_ = size;
  }
  if (together) release();
}

}  // namespace multiworld
