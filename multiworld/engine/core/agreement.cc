#include "agreement.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core.h"

namespace multiworld {
namespace {

constexpr uint32_t max_early = 4096;                       // how many collectives a peer may be ahead of us
constexpr uint64_t max_payload_bytes = 512 * 1024;  // the longest payload that comes with a fingerprint
constexpr uint64_t max_members = 4096;
constexpr uint64_t head_bytes = 24;  // then, where lengths differ by pair, bytes to and from each member

bool may_be_fingerprint(uint64_t nbytes) {
  return head_bytes <= nbytes && nbytes <= head_bytes + 16 * max_members && (nbytes - head_bytes) % 16 == 0;
}

uint64_t number_at(const std::string& table, uint64_t place) {
  uint64_t number;
  memcpy(&number, table.data() + head_bytes + 8 * place, 8);
  return number;
}

// Whether the members' fingerprints do not fit together; every member comes to the same verdict.
bool disagree(const std::vector<const std::string*>& said) {
  uint64_t size = said.size(), length = said[0]->size();
  for (auto* one : said) {
    if (one->size() != length || one->compare(0, head_bytes, *said[0], 0, head_bytes) != 0) return true;
  }
  if (length == head_bytes) return false;
  if (length != head_bytes + 16 * size) return true;
  for (uint64_t a = 0; a < size; a++) {
    for (uint64_t b = 0; b < size; b++) {
      if (number_at(*said[a], b) != number_at(*said[b], size + a)) return true;
    }
  }
  return false;
}

}  // namespace

void Agreement::start(const CollectiveRef& operation, const std::vector<Span>& outgoing) {
  operation->seq = next_++;
  if (auto early = early_.find(operation->seq); early != early_.end()) {
    for (auto& [peer, said] : early->second) {
      if (!std::count(operation->ranks.begin(), operation->ranks.end(), peer)) continue;
      operation->peer = peer;
      operation->heard[peer] = std::move(said);
    }
    early_.erase(early);
  }
  ours_[operation->seq] = operation;
  Span fingerprint{operation->fingerprint.data(), operation->fingerprint.size()};
  for (size_t place = 0; place < operation->ranks.size(); place++) {
    if (operation->ranks[place] == core_.rank()) continue;
    Span payload = outgoing.empty() ? Span{} : outgoing[place];
    Header header{uint8_t(Kind::fingerprint), 0,      uint16_t(fingerprint.size), operation->seq,
                  group_,                     fingerprint.size + payload.size};
    core_.wire().put(operation->ranks[place], header, fingerprint, payload, nullptr);
  }
  check(operation);
}

Placement Agreement::on_fingerprint(int peer, const Header& header) {
  auto found = ours_.find(header.seq);
  bool early = uint32_t(header.seq - next_) < max_early;
  // The limit of the caller is for messages whose length the sender decides.
  uint64_t longest = std::max(max_payload_bytes, core_.max_message_bytes());
  if (!may_be_fingerprint(header.flags) || header.nbytes < header.flags || header.nbytes - header.flags > longest) {
    core_.protocol_error(peer, "a fingerprint of " + std::to_string(header.flags) + " bytes in " +
                                   std::to_string(header.nbytes));
    return {};
  }
  bool expected = early;
  if (found != ours_.end()) {
    auto& ranks = found->second->ranks;
    expected = std::count(ranks.begin(), ranks.end(), peer) && !found->second->heard.contains(peer);
  }
  if (!expected) {
    core_.protocol_error(peer, "a collective of number " + std::to_string(header.seq) + ", which cannot be");
    return {};
  }
  Memory memory(header.nbytes, header.flags);  // the payload is computed on where it lies
  return {true, memory.data(), {}, memory};
}

void Agreement::arrived(int peer, const Header& header, const Memory& memory) {
  Said said{std::string(memory.data(), header.flags), memory.after(header.flags)};
  auto found = ours_.find(header.seq);
  if (found == ours_.end()) {
    early_[header.seq].emplace(peer, std::move(said));
    return;
  }
  CollectiveRef operation = found->second;
  if (!std::count(operation->ranks.begin(), operation->ranks.end(), peer)) {
    // We have begun it since, in a group that has this number by chance.
    core_.protocol_error(peer, "a collective of number " + std::to_string(header.seq) + ", which cannot be");
    return;
  }
  operation->peer = peer;
  operation->heard[peer] = std::move(said);
  check(operation);
}

void Agreement::check(const CollectiveRef& operation) {
  if (operation->heard.size() + 1 < operation->ranks.size()) return;
  ours_.erase(operation->seq);
  std::vector<const std::string*> said;
  for (int rank : operation->ranks) {
    said.push_back(rank == core_.rank() ? &operation->fingerprint : &operation->heard[rank].fingerprint);
  }
  if (disagree(said)) {
    core_.fail(*operation, Outcome::mismatch);
  } else if (operation->launches) {
    core_.launch(*operation);
  } else {
    core_.complete(*operation);
  }
}

}  // namespace multiworld
