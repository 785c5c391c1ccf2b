// A kernel in a bad mood: calls of the engine are interrupted, would block, or move a part of what is asked.
//
// Included once in a program, which is linked with `-Wl,--wrap=` for each function here.
#pragma once
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <random>

namespace moody {

inline std::atomic<unsigned> refusals{0}, parts{0};

inline unsigned draw(unsigned below) {
  static std::atomic<unsigned> threads{0};
  thread_local std::minstd_rand random(++threads);
  return unsigned(random()) % below;
}

inline bool refuses(std::initializer_list<int> errors) {
  if (draw(8)) return false;
  errno = *(errors.begin() + draw(unsigned(errors.size())));
  refusals++;
  return true;
}

// Bytes that are moved of what is asked.
inline size_t some_of(size_t asked) {
  if (asked < 2 || draw(8)) return asked;
  parts++;
  return 1 + draw(unsigned(std::min<size_t>(asked, 1 << 20)) - 1);
}

// A message of which the kernel takes a part.
struct Part {
  explicit Part(const msghdr* whole) : message(*whole) {
    size_t asked = 0;
    for (size_t i = 0; i < whole->msg_iovlen; i++) asked += whole->msg_iov[i].iov_len;
    size_t left = some_of(asked);
    for (size_t i = 0; i < whole->msg_iovlen; i++) {
      pieces[i] = whole->msg_iov[i];
      pieces[i].iov_len = std::min(left, pieces[i].iov_len);
      left -= pieces[i].iov_len;
    }
    message.msg_iov = pieces;
  }
  iovec pieces[4];
  msghdr message;
};

}  // namespace moody

extern "C" {
ssize_t __real_sendmsg(int, const msghdr*, int);
ssize_t __wrap_sendmsg(int fd, const msghdr* whole, int flags) {
  if (moody::refuses({EINTR, EAGAIN})) return -1;
  moody::Part part(whole);
  return __real_sendmsg(fd, &part.message, flags);
}
ssize_t __real_send(int, const void*, size_t, int);
ssize_t __wrap_send(int fd, const void* data, size_t size, int flags) {
  return moody::refuses({EINTR, EAGAIN}) ? -1 : __real_send(fd, data, moody::some_of(size), flags);
}
ssize_t __real_recvmsg(int, msghdr*, int);
ssize_t __wrap_recvmsg(int fd, msghdr* whole, int flags) {
  if (moody::refuses({EINTR, EAGAIN})) return -1;
  moody::Part part(whole);
  ssize_t got = __real_recvmsg(fd, &part.message, flags);
  iovec* pieces = whole->msg_iov;
  *whole = part.message;
  whole->msg_iov = pieces;
  return got;
}
int __real_epoll_wait(int, epoll_event*, int, int);
int __wrap_epoll_wait(int fd, epoll_event* events, int most, int timeout) {
  // Only what waits is interrupted.
  return timeout && moody::refuses({EINTR}) ? -1 : __real_epoll_wait(fd, events, most, timeout);
}
}
