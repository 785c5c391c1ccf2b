// Answers heartbeats: one thread without the interpreter's lock, no memory per connection, nothing that blocks.
//
// The connections are Python's: it registers them with the epoll instance and closes them. What is to be closed is shut
// down here, taken out of the epoll instance, and reported.
#pragma once
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace multiworld {

constexpr char ping = 'p', pong = 'P';

// Answer each ping byte that has come with one byte. False if the connection is over, or carries anything else.
inline bool answer_pings(int fd) {
  char bytes[64];
  ssize_t got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0 || !std::all_of(bytes, bytes + got, [](char byte) { return byte == ping; })) return false;
  std::fill_n(bytes, got, pong);
  // A peer that does not read the answers misses them: that is its own loss.
  return send(fd, bytes, size_t(got), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0 || errno == EAGAIN || errno == EINTR;
}

// Shut the connection down and report it. The number is free for others only when Python closes it.
inline void end_heartbeats(int epoll_fd, int fd, int ended_fd) {
  epoll_ctl(epoll_fd, EPOLL_CTL_DEL, fd, nullptr);
  shutdown(fd, SHUT_RDWR);
  // A pipe holds 16,384 reports. One that is lost costs a descriptor until the responder is closed.
  if (write(ended_fd, &fd, sizeof fd) < 0) return;
}

// Answer until stop_fd, which the epoll instance holds too, is readable.
//
// ended_fd is the writing end of a non-blocking pipe: the number of each connection that has ended, as an int.
inline void answer_heartbeats(int epoll_fd, int stop_fd, int ended_fd) {
  epoll_event events[64];
  for (;;) {
    int count = epoll_wait(epoll_fd, events, 64, -1);
    if (count < 0 && errno != EINTR) return;
    for (int i = 0; i < count; i++) {
      int fd = events[i].data.fd;
      if (fd == stop_fd) return;
      if (!answer_pings(fd)) end_heartbeats(epoll_fd, fd, ended_fd);
    }
  }
}

}  // namespace multiworld
