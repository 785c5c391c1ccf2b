// A queue for each key, made when it is first used.
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <unordered_map>

namespace multiworld {

// Programs may give every message a tag of its own; the queues of old tags must not stay.
template <class T>
class Queues {
 public:
  using Queue = std::deque<T>;

  // The queue of `key`; null if there is nothing in it. Valid until the next `operator[]`.
  Queue* find(uint64_t key) {
    auto found = queues_.find(key);
    return found == queues_.end() || found->second.empty() ? nullptr : &found->second;
  }

  Queue& operator[](uint64_t key) {
    auto found = queues_.find(key);
    if (found != queues_.end()) return found->second;
    if (queues_.size() >= room_) {
      std::erase_if(queues_, [](const auto& entry) { return entry.second.empty(); });
      room_ = std::max<size_t>(least_room, 2 * queues_.size());
    }
    return queues_[key];
  }

  // Take out the first that equals `value`; false if there is none.
  template <class Equal>
  bool remove(uint64_t key, Equal equal) {
    Queue* queue = find(key);
    if (!queue) return false;
    auto place = std::find_if(queue->begin(), queue->end(), equal);
    if (place == queue->end()) return false;
    queue->erase(place);
    return true;
  }

 private:
  static constexpr size_t least_room = 1024;
  std::unordered_map<uint64_t, Queue> queues_;
  size_t room_ = least_room;
};

}  // namespace multiworld
