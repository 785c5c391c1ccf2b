#include "ring.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#ifndef MFD_NOEXEC_SEAL  // Linux 6.3
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef F_SEAL_FUTURE_WRITE  // Linux 5.1
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace multiworld {
namespace {

// With these a reader's memory cannot be taken away, by shrinking or by punching holes.
constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

std::atomic<uint64_t> made_bytes{0};
std::atomic<int> last_refusal{0};

char* mapped(int descriptor, int rights) {
  // All of it now: a page that is missing later could not be refused.
  void* memory = mmap(nullptr, Ring::size, rights, MAP_SHARED | MAP_POPULATE, descriptor, 0);
  if (memory == MAP_FAILED) return last_refusal = errno, nullptr;
  madvise(memory, Ring::size, MADV_DONTFORK);
  return static_cast<char*>(memory);
}

// Memory without a name, all of which is there; -1 if it cannot be had.
int unnamed() {
  // Not by glibc's function, which older systems lack.
  auto make = [](unsigned flags) { return int(syscall(SYS_memfd_create, "multiworld", flags)); };
  int descriptor = make(MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (descriptor < 0 && errno == EINVAL) descriptor = make(MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) return -1;
  if (ftruncate(descriptor, Ring::size) == 0 && fallocate(descriptor, 0, 0, Ring::size) == 0) return descriptor;
  int error = errno;
  close(descriptor);
  errno = error;
  return -1;
}

}  // namespace

std::unique_ptr<Ring> Ring::make(int& descriptor) {
  if (made_bytes.fetch_add(size) + size > most_bytes) {
    made_bytes -= size;
    last_refusal = ENOSPC;
    return nullptr;
  }
  descriptor = unnamed();
  if (descriptor < 0) last_refusal = errno;
  char* memory = descriptor < 0 ? nullptr : mapped(descriptor, PROT_READ | PROT_WRITE);
  if (memory && fcntl(descriptor, F_ADD_SEALS, seals) == 0) return std::unique_ptr<Ring>(new Ring(memory, true));
  if (memory) last_refusal = errno, munmap(memory, size);
  if (descriptor >= 0) close(descriptor);
  descriptor = -1;
  made_bytes -= size;
  return nullptr;
}

bool Ring::is_safe(int descriptor) {
  struct stat status;
  int sealed = fcntl(descriptor, F_GET_SEALS);
  return sealed >= 0 && (sealed & seals) == seals && fstat(descriptor, &status) == 0 && uint64_t(status.st_size) == size &&
         uint64_t(status.st_blocks) * 512 >= size;
}

std::unique_ptr<Ring> Ring::map(int descriptor) {
  char* memory = mapped(descriptor, PROT_READ);
  return std::unique_ptr<Ring>(memory ? new Ring(memory, false) : nullptr);
}

int Ring::refused() { return last_refusal; }

Ring::~Ring() {
  munmap(memory_, size);
  if (made_) made_bytes -= size;
}

void Ring::write(const char* from, uint64_t bytes) {
  uint64_t first = std::min(bytes, size - at_);
  memcpy(memory_ + at_, from, first);
  memcpy(memory_, from + first, bytes - first);
  at_ = (at_ + bytes) % size;
}

void Ring::read(char* to, uint64_t bytes) {
  uint64_t first = std::min(bytes, size - at_);
  if (to) {
    memcpy(to, memory_ + at_, first);
    memcpy(to + first, memory_, bytes - first);
  }
  at_ = (at_ + bytes) % size;
}

}  // namespace multiworld
