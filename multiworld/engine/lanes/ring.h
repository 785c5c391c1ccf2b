// A ring in shared memory that one process writes and another reads: payloads that are large go through it.
//
// Only payloads are in it. How much of it is filled, and how much is free again, is said by frames on the lane: nothing that
// the other process could change while it is read has to be believed. The memory has no name, and goes with its last user.
#pragma once
#include <cstdint>
#include <memory>

namespace multiworld {

class Ring {
 public:
  // More than these are not made in a process: its other lanes stay as they are.
  static constexpr uint64_t most_bytes = uint64_t(256) << 20;
  static constexpr uint64_t size = 1 << 20;

  // Make one to write to, whose descriptor is for the reader. Null if there is no memory for it, or none may be shared.
  static std::unique_ptr<Ring> make(int& descriptor);
  // Whether that is memory which stays as it is: it never shrinks and no other process than its maker writes to it.
  static bool is_safe(int descriptor);
  // Map one to read from; null if it cannot be mapped.
  static std::unique_ptr<Ring> map(int descriptor);
  // Why none could be made or mapped last, as a number of an error; 0 if that has not happened.
  static int refused();

  ~Ring();
  Ring(const Ring&) = delete;

  // Go on with so many bytes, at most `size`.
  void write(const char* from, uint64_t bytes);
  void read(char* to, uint64_t bytes);  // to null: they are dropped

 private:
  Ring(char* memory, bool made) : memory_(memory), made_(made) {}

  char* const memory_;
  const bool made_;
  uint64_t at_ = 0;
};

}  // namespace multiworld
