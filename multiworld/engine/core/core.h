// The core: all messages and collectives of one generation of one world, matched as their frames come.
//
// It does no I/O and knows no clock, socket or thread. Frames go out through a `Wire`, come in through `on_frame`, and what
// ends the generation is the host's to do. Everything is called under the lock of the world.
#pragma once
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "agreement.h"
#include "messages.h"
#include "operation.h"

namespace multiworld {

// The ways to the peers.
class Wire {
 public:
  virtual ~Wire() = default;
  // Send a frame. The memory of a `send` is read in place until it is told that all is written, or disowned. Everything
  // else is copied if it does not go out at once.
  virtual void put(int peer, const Header& header, Span first, Span second, SendOperation* send) = 0;
  // Copy what is not written yet of `send`: its memory is the caller's again. Without memory for that the way ends.
  virtual void disown(int peer, SendOperation& send) = 0;
  // Whether a payload from `peer` is on its way to the memory it was given.
  virtual bool receiving(int peer) = 0;
  // Let that payload, of `length` bytes, go to `own` instead of `whole`, what has come of it included.
  virtual void redirect(int peer, const char* whole, char* own, uint64_t length) = 0;
};

enum class Loss : uint8_t { left, protocol };

// What the core asks of its owner.
class Host {
 public:
  virtual ~Host() = default;
  // An operation has its outcome.
  virtual void settled(Operation& operation) = 0;
  // The owner is to begin it: all members agree on a collective that `launches`, or a message on the device is matched.
  // The members begin what they have in common in this order. Then, it is to go on with a collective: its parts are there.
  virtual void launch(Operation& operation) = 0;
  // A withdrawn operation will not be needed: nothing is told of it any more.
  virtual void dropped(Operation& operation) = 0;
  // A receive from any source has become this one.
  virtual void chosen(AnyReceive& any, const ReceiveRef& receive) = 0;
  // The world cannot go on as it is, because of `peer`.
  virtual void lost(int peer, Loss why, const std::string& what) = 0;
  // A value for the set-up of a backend begins: whether it can be right. Then all of it comes.
  virtual bool expects_value(int peer, const Header& header) = 0;
  virtual void on_value(int peer, const Header& header, const Memory& value) = 0;
  virtual void on_bye(int peer, bool gives_up) = 0;
};

// Where the payload of a frame goes, and whose it is. One that is not wanted is dropped.
struct Placement {
  bool wanted = false;
  char* to = nullptr;
  ReceiveRef receive;  // of a message
  Memory memory;       // of everything else
};

class Core {
 public:
  // Args: our rank; the other members; the longest message whose length its sender decides.
  Core(int rank, const std::vector<int>& peers, uint64_t max_message_bytes, Wire& wire, Host& host);

  // Starts. Each returns the operation, which may have ended already. Memory on the device may be used `after` an event.
  OperationRef send(int peer, uint64_t key, Signature signature, Span payload, std::string tail, bool borrowed,
                    bool on_device = false, void* after = nullptr);
  OperationRef receive(int peer, uint64_t key, Signature signature, char* to, bool borrowed, bool on_device = false,
                       void* after = nullptr);
  OperationRef receive_any(const std::vector<int>& peers, uint64_t key, Signature signature, char* to, bool borrowed,
                           bool on_device = false, void* after = nullptr);
  // `outgoing` has what goes with the fingerprint to each of `ranks`, our own place included.
  CollectiveRef collective(uint64_t group, std::vector<int> ranks, std::string fingerprint, bool launches,
                           const std::vector<Span>& outgoing);

  // Move parts of a collective that was launched, in the order of the members' calls: it is launched again when all of
  // them are there.
  void exchange(const CollectiveRef& whole, const std::vector<Part>& parts);

  // Give it up: its caller waits no more. On return the caller's memory is the caller's; that of parts when they are there.
  void withdraw(const OperationRef& operation);
  // Whether the host has to do with it after its withdrawal: the backend uses its memory, or is to begin it.
  bool goes_on(const Operation& operation) const;

  // What the host tells of the backend, and of memory on the device.
  void over(Operation& operation) { settle(operation, Outcome::done); }  // it has ended, or its caller goes on before that
  void landed(const ReceiveRef& operation) { operation->messages.landed(operation); }  // the payload is there
  void keep(const ReceiveRef& operation) { operation->messages.keep_landed(operation); }  // a copy of it is made

  // Frames. A payload that is wanted is followed by `arrived`, or by nothing where the lane ends.
  Placement on_frame(int peer, const Header& header);
  void arrived(int peer, const Header& header, Placement& placement);

  // The end.
  bool depart(int peer, bool gives_up);  // whether every operation can still end
  bool gives_up() const;                 // whether our own end leaves something undone that others take part in
  bool needs(int peer) const;            // whether an operation cannot end without it
  bool needs(const Operation& operation, int peer) const;
  bool keeps(int peer, uint64_t key) { return messages_.at(peer).keeps(key); }
  std::vector<int> awaited(const Operation& operation) const;
  void end();  // fail all but what all agreed on, and let nothing begin any more

  // For the parts of the core and for the wire.
  void complete(Operation& operation) { settle(operation, Outcome::done); }
  void fail(Operation& operation, Outcome outcome);
  void mismatch(Operation& operation, const Signature& theirs);
  void launch(Operation& operation);
  void discard(Operation& operation) { under_way_.erase(&operation); }
  void drop(Operation& operation);
  void resume(const OperationRef& operation);
  void give_back(Operation& operation);
  void put(int peer, Kind kind, const Signature& signature, uint32_t seq, uint64_t key);
  void protocol_error(int peer, const std::string& what) { host_.lost(peer, Loss::protocol, what); }
  // A message lies ready at `messages`: let a receive from any source take it.
  void offer_kept(Messages& messages, uint64_t key);
  Wire& wire() { return wire_; }
  Host& host() { return host_; }
  uint64_t max_message_bytes() const { return max_message_bytes_; }
  int rank() const { return rank_; }
  size_t under_way() const { return under_way_.size(); }

 private:
  bool begin(const OperationRef& operation, const std::vector<int>& gone);
  void settle(Operation& operation, Outcome outcome);
  void part_over(const Operation& part, const CollectiveRef& whole);
  void on_offer(int peer, uint32_t seq);
  void choose(const AnyRef& any, Messages& messages, bool offered);
  bool take_kept(const AnyRef& any, Messages& messages);
  void close(AnyReceive& any, int answering);
  Agreement* group(uint64_t number);

  const int rank_;
  const uint64_t max_message_bytes_;
  Wire& wire_;
  Host& host_;
  std::map<int, Messages> messages_;
  std::unordered_map<uint64_t, Agreement> groups_;
  std::vector<AnyRef> any_receives_;  // those that wait for an offer
  std::unordered_map<Operation*, OperationRef> under_way_;
  std::set<int> departed_;
  uint32_t next_any_ = 1;
  bool ended_ = false;
};

}  // namespace multiworld
