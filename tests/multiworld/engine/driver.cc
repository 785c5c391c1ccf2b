// The core for ctypes; see `model.py`. Operations are numbered in the order of their starts.
#include <array>

#include "node.h"

using namespace multiworld;

namespace {

// Notes what was launched.
struct Driven : Node {
  using Node::Node;
  void launch(Operation& operation) override {
    auto* receive = dynamic_cast<ReceiveOperation*>(&operation);
    auto* send = dynamic_cast<SendOperation*>(&operation);
    uint64_t nbytes = receive ? receive->length : send ? send->signature.nbytes : 0;
    launched.push_back({uint64_t(operation.type), uint64_t(operation.peer), nbytes, receive && receive->borrowed});
    Node::launch(operation);
  }
  std::vector<std::array<uint64_t, 4>> launched;
};

int keep(Node* node, OperationRef operation) {
  node->operations.push_back(operation);
  operation->id = node->operations.size();
  return int(operation->id) - 1;
}

}  // namespace

extern "C" {

Node* node_new(int rank, const int* peers, int count, uint64_t longest) {
  return new Driven(rank, std::vector<int>(peers, peers + count), longest);
}
void node_free(Node* node) { delete static_cast<Driven*>(node); }

int node_send(Node* node, int peer, uint64_t key, int mode, int dtype, const char* data, uint64_t size, const char* tail,
              uint64_t tail_size, int borrowed) {
  Signature signature{uint16_t(mode), uint8_t(dtype), size + tail_size};
  return keep(node, node->core.send(peer, key, signature, {data, size}, std::string(tail, tail_size), borrowed));
}
int node_send_on_device(Node* node, int peer, uint64_t key, int mode, int dtype, uint64_t size, const char* said,
                        uint64_t said_size) {
  Signature signature{uint16_t(mode), uint8_t(dtype), size};
  return keep(node, node->core.send(peer, key, signature, {}, std::string(said, said_size), false, true));
}
int node_receive(Node* node, int peer, uint64_t key, int mode, int dtype, uint64_t size, char* to, int on_device) {
  bool borrowed = to || mode == mode_device;
  return keep(node, node->core.receive(peer, key, {uint16_t(mode), uint8_t(dtype), size}, to, borrowed, on_device));
}
int node_receive_any(Node* node, const int* peers, int count, uint64_t key, int mode, int dtype, uint64_t size, char* to) {
  std::vector<int> all(peers, peers + count);
  bool on_device = mode == mode_device;
  return keep(node, node->core.receive_any(all, key, {uint16_t(mode), uint8_t(dtype), size}, to, true, on_device));
}
int node_collective(Node* node, uint64_t group, const int* ranks, int count, const char* fingerprint, uint64_t size,
                    const char* outgoing, uint64_t each, int launches) {
  std::vector<Span> parts;
  for (int place = 0; outgoing && place < count; place++) parts.push_back({outgoing + each * place, each});
  return keep(node, node->core.collective(group, std::vector<int>(ranks, ranks + count), std::string(fingerprint, size),
                                          launches, parts));
}
// Move parts of the collective that was launched as number `place`: of `size` bytes from and to each peer.
void node_exchange(Node* node, int place, const int* peers, int count, char** to, char** of, uint64_t size) {
  std::vector<Part> parts;
  for (int i = 0; i < count; i++) parts.push_back({true, peers[i], to[i], size});
  for (int i = 0; i < count; i++) parts.push_back({false, peers[i], of[i], size});
  node->core.exchange(std::static_pointer_cast<CollectiveOperation>(node->launches.at(place)), parts);
}
void node_withdraw(Node* node, int number) { node->core.withdraw(node->operations.at(number)); }
int node_goes_on(Node* node, int number) { return node->core.goes_on(*node->operations.at(number)); }
void node_keep(Node* node, int number) {
  node->core.keep(std::static_pointer_cast<ReceiveOperation>(node->operations.at(number)));
}

// (type, peer, bytes, whether it borrows) of what was launched as number `place`.
int node_launch(Node* node, int place, uint64_t* found) {
  auto& launched = static_cast<Driven*>(node)->launched;
  if (place >= int(launched.size())) return 0;
  std::copy(launched[place].begin(), launched[place].end(), found);
  return 1;
}
// It goes on in its stream; it is over.
void node_enqueued(Node* node, int place) { node->core.over(*node->launches.at(place)); }
void node_over(Node* node, int place) { node->over(size_t(place)); }
// (arrival, whether it has a message that was kept on the device) of a receive, and the shape that was said.
int64_t node_message(Node* node, int number, int* taken, char* shape, uint64_t room) {
  auto& receive = static_cast<ReceiveOperation&>(*node->operations.at(number));
  *taken = receive.taken != nullptr;
  std::string& said = receive.taken ? receive.taken->shape : receive.shape;
  memcpy(shape, said.data(), std::min<uint64_t>(room, said.size()));
  shape[said.size()] = 0;
  return receive.arrival;
}
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
