/* Answers heartbeats without Python: one thread, no GIL, no memory per connection, nothing that blocks.
 *
 * The connections are Python's: it registers them with the epoll instance and closes them. What is to be closed is
 * shut down here, taken out of the epoll instance, and reported. Plain C11 that is valid C++ as well: on some machines
 * only a C++ compiler is installed.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define PING 'p'
#define PONG 'P'

#ifdef __cplusplus
extern "C" {
#endif

/* Raised with every change that pulse.py has to know: a library of another number is not used. */
int mw_pulse_abi(void) { return 1; }

/* Answer each ping byte that has come with one byte. 0 if the connection is over, or carries anything else. */
static int answer(int fd) {
    char bytes[64];
    ssize_t got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return 0;
    for (ssize_t i = 0; i < got; i++)
        if (bytes[i] != PING) return 0;
    memset(bytes, PONG, (size_t)got);
    /* Who does not read the answers misses them: that is its own loss. */
    return send(fd, bytes, (size_t)got, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0 || errno == EAGAIN || errno == EINTR;
}

/* Shut the connection down and report it. The number is free for others only when Python closes it. */
static void end(int epoll_fd, int fd, int ended_fd) {
    epoll_ctl(epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    shutdown(fd, SHUT_RDWR);
    /* A pipe holds 16,384 reports. One that is lost costs a descriptor until the responder is closed. */
    if (write(ended_fd, &fd, sizeof fd) < 0) return;
}

/* Answer until stop_fd, which the epoll instance holds too, is readable; 0, or the errno of epoll_wait.
 *
 * ended_fd is the writing end of a non-blocking pipe: the number of each connection that has ended, as an int.
 */
int mw_pulse_run(int epoll_fd, int stop_fd, int ended_fd) {
    struct epoll_event events[64];
    for (;;) {
        int count = epoll_wait(epoll_fd, events, 64, -1);
        if (count < 0 && errno != EINTR) return errno;
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (fd == stop_fd) return 0;
            if (!answer(fd)) end(epoll_fd, fd, ended_fd);
        }
    }
}

#ifdef __cplusplus
}
#endif
