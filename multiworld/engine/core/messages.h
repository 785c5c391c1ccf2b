// Messages with one peer: receives are posted to the sender, who sends only what fits exactly.
//
// The receiver says what it waits for (post). The sender compares that with what it has, and sends the payload (data) or
// says what it has instead (reject). So both know a wrong length or dtype before a payload moves, and nothing arrives that
// has no place. A message whose receive was withdrawn is kept for the next one.
#pragma once
#include <cstdint>
#include <unordered_map>

#include "operation.h"
#include "queues.h"

namespace multiworld {

class Core;
struct Placement;

class Messages {
 public:
  Messages(Core& core, int peer) : core_(core), peer(peer) {}
  Messages(const Messages&) = delete;

  // Ours.
  void send(const SendRef& operation);
  void receive(const ReceiveRef& operation);
  void withdraw(const SendRef& operation);
  void withdraw(const ReceiveRef& operation);
  // Let what comes, or has come, lie in memory of our own.
  void divert(ReceiveOperation& operation);
  // Whether a message lies ready that came for a receive without a waiter.
  bool keeps(uint64_t key) { return kept_.find(key) != nullptr; }
  // And whether none that came before it is still on its way.
  bool ready(uint64_t key);
  // The payload of a message on the device is there. In the memory of a caller who has left it is kept once it is copied.
  void landed(const ReceiveRef& operation);
  void keep_landed(const ReceiveRef& operation);

  // The peer's.
  void on_post(const Signature& wanted, uint32_t seq, uint64_t key);
  Placement on_data(const Header& header);
  void on_reject(const Signature& theirs, uint32_t seq);
  void on_cancel(uint32_t seq, uint64_t key);
  void on_cancelled(uint32_t seq);
  void on_any(uint32_t seq, uint64_t key);
  void on_any_done(uint32_t seq, uint64_t key);
  void on_take(uint32_t seq, uint64_t key);
  void arrived(const ReceiveRef& operation);
  void described(const ReceiveRef& operation, const Memory& said);

 private:
  struct Post {
    uint32_t seq;
    Signature signature;
  };

  void match(uint64_t key);
  void answer(SendOperation& operation, const Post& post);
  void send_on_device(SendOperation& operation, uint32_t seq);
  Placement on_device_data(const ReceiveRef& operation, const Header& header);
  void transfer(const ReceiveRef& operation);
  void withdraw_arrived(const ReceiveRef& operation);
  void post(const ReceiveRef& operation);
  void decline(ReceiveOperation& operation);
  void keep(const ReceiveRef& operation);
  void serve_posted(uint64_t key);
  void take_kept(const ReceiveRef& operation);
  bool forget_orphan(const ReceiveRef& operation);
  void unblock(uint64_t key);
  void forget_any(uint32_t seq, uint64_t key);
  void one_more();

  Core& core_;

 public:
  const int peer;

 private:
  Queues<SendRef> sends_;
  Queues<Post> posts_;
  Queues<uint32_t> any_posts_;                       // the peer's receives from any source
  std::unordered_map<uint64_t, uint32_t> taken_;     // which offer of ours the next post of that key answers
  std::unordered_map<uint32_t, ReceiveRef> wanted_;  // ours, by number of the post
  Queues<ReceiveRef> kept_;                          // came for a receive that was withdrawn
  Queues<ReceiveRef> orphans_;                       // withdrawn, not settled yet
  Queues<ReceiveRef> blocked_;                       // wait until the withdrawn ones are settled
  uint64_t posted_ = 0;
  int64_t arrivals_ = 0;
  uint64_t waiting_ = 0;  // receives of the peer that wait here
};

}  // namespace multiworld
