// Memory of our own, for payloads without a caller's memory, and views of memory.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace multiworld {

struct Span {
  const char* data = nullptr;
  uint64_t size = 0;
};

// Bytes that live as long as a copy of this. Large memory is taken from the kernel as it is filled.
class Memory {
 public:
  static constexpr uint64_t alignment = 64;  // as torch's own

  Memory() = default;

  // `head` bytes lie before the part that is aligned, so that tensors can be laid over it.
  explicit Memory(uint64_t size, uint64_t head = 0) : size_(size) {
    uint64_t before = (alignment - head % alignment) % alignment;
    if (size > max_size) throw std::bad_alloc();
    char* whole = static_cast<char*>(aligned_alloc(alignment, (before + size + alignment) / alignment * alignment));
    if (!whole) throw std::bad_alloc();
    owner_ = std::shared_ptr<char>(whole, free);
    data_ = whole + before;
  }

  static Memory copy(Span from) {
    Memory made(from.size);
    if (from.size) memcpy(made.data_, from.data, from.size);
    return made;
  }

  // The same memory without its first bytes.
  Memory after(uint64_t bytes) const {
    Memory rest = *this;
    rest.data_ += bytes;
    rest.size_ -= bytes;
    return rest;
  }

  char* data() const { return data_; }
  uint64_t size() const { return size_; }
  explicit operator bool() const { return owner_ != nullptr; }

 private:
  static constexpr uint64_t max_size = uint64_t(1) << 46;  // more than any machine has; sums of lengths do not overflow
  std::shared_ptr<char> owner_;
  char* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace multiworld
