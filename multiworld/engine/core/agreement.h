// Agreement on collectives: each member tells all others what it calls, and all compare.
//
// Small payloads travel with that; then the exchange is the whole collective. Larger ones go in parts, or through the
// backend, once all agree. If anything differs, every member sees the same fingerprints, and the operation ends as a
// mismatch.
#pragma once
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "operation.h"

namespace multiworld {

class Core;
struct Placement;

// The collectives of one group, in order.
class Agreement {
 public:
  Agreement(Core& core, uint64_t group) : core_(core), group_(group) {}

  // Tell the others what we call, and go on if all have told us.
  void start(const CollectiveRef& operation, const std::vector<Span>& outgoing);
  // A fingerprint begins to arrive, and has arrived.
  Placement on_fingerprint(int peer, const Header& header);
  void arrived(int peer, const Header& header, const Memory& memory);

 private:
  void check(const CollectiveRef& operation);

  Core& core_;
  const uint64_t group_;
  uint32_t next_ = 0;
  std::unordered_map<uint32_t, CollectiveRef> ours_;
  std::unordered_map<uint32_t, std::map<int, Said>> early_;
};

}  // namespace multiworld
