// Blocking events of CUDA, used again and again; from any thread. A blocking event lets who waits for it sleep.
#pragma once
#include <mutex>
#include <string>
#include <vector>

#include "launch/functions.h"

namespace multiworld {

class Events {
 public:
  explicit Events(const Functions& functions) : functions_(functions) {}

  // One for the thread's current device; an error in words, or nothing.
  std::string take(void*& event) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!free_.empty()) {
        event = free_.back();
        free_.pop_back();
        return {};
      }
    }
    return functions_.said("cudaEventCreateWithFlags", functions_.cudaEventCreateWithFlags(&event, blocking_untimed));
  }

  void give_back(void* event) {
    std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(event);
  }

  // Destroy those that are not in use; a call of CUDA, which may wait.
  void release() {
    std::vector<void*> unused;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      unused.swap(free_);
    }
    for (void* event : unused) functions_.cudaEventDestroy(event);
  }

 private:
  static constexpr unsigned blocking_untimed = 1 | 2;
  const Functions& functions_;
  std::mutex mutex_;
  std::vector<void*> free_;
};

}  // namespace multiworld
