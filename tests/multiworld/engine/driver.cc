// The core for ctypes; see `model.py`. Operations are numbered in the order of their starts.
#include "node.h"

using namespace multiworld;

namespace {

int keep(Node* node, OperationRef operation) {
  node->operations.push_back(std::move(operation));
  return int(node->operations.size()) - 1;
}

}  // namespace

extern "C" {

Node* node_new(int rank, const int* peers, int count, uint64_t longest) {
  return new Node(rank, std::vector<int>(peers, peers + count), longest);
}
void node_free(Node* node) { delete node; }

int node_send(Node* node, int peer, uint64_t key, int mode, int dtype, const char* data, uint64_t size, const char* tail,
              uint64_t tail_size, int borrowed) {
  Signature signature{uint16_t(mode), uint8_t(dtype), size + tail_size};
  return keep(node, node->core.send(peer, key, signature, {data, size}, std::string(tail, tail_size), borrowed));
}
int node_receive(Node* node, int peer, uint64_t key, int mode, int dtype, uint64_t size, char* to) {
  return keep(node, node->core.receive(peer, key, {uint16_t(mode), uint8_t(dtype), size}, to, to != nullptr));
}
int node_receive_any(Node* node, const int* peers, int count, uint64_t key, int dtype, uint64_t size, char* to) {
  std::vector<int> all(peers, peers + count);
  return keep(node, node->core.receive_any(all, key, {mode_fixed, uint8_t(dtype), size}, to, true));
}
int node_collective(Node* node, uint64_t group, const int* ranks, int count, const char* fingerprint, uint64_t size,
                    const char* outgoing, uint64_t each) {
  std::vector<Span> parts;
  for (int place = 0; outgoing && place < count; place++) parts.push_back({outgoing + each * place, each});
  return keep(node, node->core.collective(group, std::vector<int>(ranks, ranks + count), std::string(fingerprint, size),
                                          false, parts));
}
void node_withdraw(Node* node, int number) { node->core.withdraw(node->operations.at(number)); }
int node_outcome(Node* node, int number) { return int(node->operations.at(number)->outcome); }
int node_peer(Node* node, int number) { return node->operations.at(number)->peer; }

// What came for an operation, to memory of our own: its length, and as much of it as fits.
int64_t node_own(Node* node, int number, char* to, uint64_t room) {
  auto* receive = dynamic_cast<ReceiveOperation*>(node->operations.at(number).get());
  if (!receive || !receive->own) return -1;
  uint64_t here = std::min(room, receive->length);
  if (here) memcpy(to, receive->to, here);
  return int64_t(receive->length);
}
int64_t node_heard(Node* node, int number, int rank, char* to, uint64_t room) {
  auto& heard = static_cast<CollectiveOperation&>(*node->operations.at(number)).heard;
  if (!heard.contains(rank)) return -1;
  Memory& payload = heard[rank].payload;
  if (payload.size()) memcpy(to, payload.data(), std::min(room, payload.size()));
  return int64_t(payload.size());
}

int node_next(Node* node, int* peer, Header* header) {
  if (node->log.empty()) return 0;
  *peer = node->log.front().peer;
  *header = node->log.front().header;
  node->log.pop_front();
  return 1;
}
int64_t node_write(Node* node, int peer, char* to, uint64_t room) {
  std::string written;
  if (!node->write(peer, written)) return -1;
  memcpy(to, written.data(), std::min<uint64_t>(room, written.size()));
  return int64_t(written.size());
}
int node_begins(Node* node, int peer, const Header* header) { return node->begins(peer, *header); }
void node_comes(Node* node, int peer, const char* data, uint64_t size) { node->comes(peer, data, size); }
int node_failed(Node* node) { return !node->failure.empty(); }
void node_end(Node* node) { node->end("ended"); }
uint64_t node_under_way(Node* node) { return node->core.under_way(); }
int node_needs(Node* node, int peer) { return node->core.needs(peer); }
int node_gives_up(Node* node) { return node->core.gives_up(); }
}
