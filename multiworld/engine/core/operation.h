// Operations under way: each from its start to its outcome. All of it is guarded by the lock of the world.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "memory.h"
#include "protocol.h"

namespace multiworld {

class Messages;
struct CollectiveOperation;

enum class Outcome : uint8_t {
  pending = 0,
  done = 1,
  mismatch = 2,   // the peer has something else, see `theirs`; the world goes on
  ended = 3,      // the world is broken or closed
  owed = 4,       // not the core's: it is pending, and there is something to begin on the backend
  kept = 5,       // nor this: it is done, and its payload lies on the device in memory of an earlier receive
  enqueued = 6,   // nor this: it is pending, and in the stream, which is all that its caller waits for
};

struct Signature {
  uint16_t mode = mode_fixed;
  uint8_t dtype = 0;
  uint64_t nbytes = 0;  // the length, or the limit of a receive whose sender says the length

  bool operator==(const Signature&) const = default;
  // Whether a message like `sent` is what a receive like this waits for.
  bool admits(const Signature& sent) const {
    if (mode != sent.mode) return false;
    return is_exact(mode) ? *this == sent : sent.nbytes <= nbytes;
  }
};

// One operation. It ends at most once.
struct Operation : std::enable_shared_from_this<Operation> {
  enum class Type : uint8_t { send, receive, any, collective };

  Operation(Type type, bool borrowed) : type(type), borrowed(borrowed) {}
  virtual ~Operation() = default;

  const Type type;
  uint64_t id = 0;  // the host's own
  bool borrowed;  // it reads or writes the caller's memory; on the device that of a receive alone
  bool withdrawn = false;
  bool launched = false;  // the backend is to begin it, or has: its end is the host's to tell
  Outcome outcome = Outcome::pending;
  int peer = -1;       // the world rank a message goes to, or came from; of a collective the last that was heard
  Signature theirs;    // of a mismatch
  std::shared_ptr<CollectiveOperation> whole;  // the collective whose part it moves

  bool done() const { return outcome != Outcome::pending; }
  bool succeeded() const { return outcome == Outcome::done; }
};
using OperationRef = std::shared_ptr<Operation>;

// A message as its sender or its receiver has it. Those that are `on_device` have their memory there, which is the host's.
struct MessageOperation : Operation {
  MessageOperation(Type type, bool borrowed, Messages& messages, uint64_t key, Signature signature, bool on_device, void* after)
      : Operation(type, borrowed), messages(messages), key(key), signature(signature), on_device(on_device), after(after) {}

  Messages& messages;
  uint64_t key;
  Signature signature;
  const bool on_device;
  void* const after;  // an event on the device, before which its memory there is not to be used
};

struct SendOperation : MessageOperation {
  SendOperation(Messages& messages, uint64_t key, Signature signature, Span payload, std::string tail, bool borrowed,
                bool on_device, void* after)
      : MessageOperation(Type::send, borrowed, messages, key, signature, on_device, after),
        payload(payload),
        tail(std::move(tail)) {
    if (!borrowed && !on_device) take();
  }

  // Use a copy of the payload.
  void take() {
    own = Memory::copy(payload);
    payload.data = own.data();
  }

  Span payload;  // of one on the device known only if it can be launched without the host
  std::string tail;    // the shape of a tensor; of one on the device its length and shape
  Memory own;          // what `payload` points to, unless it is the caller's
  bool matched = false;
  int64_t offered = -1;  // number of the peer's receive from any source that it is offered to
};
using SendRef = std::shared_ptr<SendOperation>;

struct ReceiveOperation;
using ReceiveRef = std::shared_ptr<ReceiveOperation>;

struct ReceiveOperation : MessageOperation {
  ReceiveOperation(Messages& messages, uint64_t key, Signature signature, char* to, bool borrowed, bool on_device,
                   void* after = nullptr)
      : MessageOperation(Type::receive, borrowed, messages, key, signature, on_device, after),
        to(to),
        placed(borrowed && !on_device) {}

  char* to;            // where the payload goes; on the device known only if it can be launched without the host
  bool placed;         // whether there is such a place here yet; memory is found when the payload comes
  Memory own;          // what `to` points to, if it is not the caller's
  uint64_t length = 0;   // of the payload, and its dtype, once it comes
  uint8_t dtype = 0;
  int64_t seq = -1;      // of its post
  int64_t offer = -1;    // number of the receive from any source whose offer it answers
  int64_t arrival = -1;  // place of its message among all that came from this peer
  bool arriving = false;
  bool lies_on_device = false;  // its payload goes there, or is there
  std::string shape;            // of a tensor whose payload does
  ReceiveRef taken;             // whose message it got, where that lies on the device
};

// A receive from any source: it asks all, becomes a receive from the first that offers, and tells the others.
struct AnyReceive : Operation {
  AnyReceive(uint64_t key, Signature signature, char* to, bool borrowed, bool on_device, void* after,
             std::vector<Messages*> candidates)
      : Operation(Type::any, borrowed),
        key(key),
        signature(signature),
        to(to),
        on_device(on_device),
        after(after),
        candidates(std::move(candidates)) {}

  uint64_t key;
  Signature signature;
  char* to;
  const bool on_device;
  void* const after;
  std::vector<Messages*> candidates;
  int64_t seq = -1;
  ReceiveRef chosen;
};
using AnyRef = std::shared_ptr<AnyReceive>;

// What a member said of a collective: its fingerprint, and the payload that came with it.
struct Said {
  std::string fingerprint;
  Memory payload;
};

struct CollectiveOperation : Operation {
  CollectiveOperation(uint64_t group, std::vector<int> ranks, std::string fingerprint, bool launches)
      : Operation(Type::collective, false),
        group(group),
        ranks(std::move(ranks)),
        fingerprint(std::move(fingerprint)),
        launches(launches) {}

  uint64_t group;
  std::vector<int> ranks;
  std::string fingerprint;
  bool launches;  // once agreed on it is the owner's to begin, in parts or on the backend
  uint32_t seq = 0;
  size_t parts = 0;  // that are under way
  std::map<int, Said> heard;  // by world rank
};
using CollectiveRef = std::shared_ptr<CollectiveOperation>;

// What one member sends to, or receives from, another one in a collective that all agreed on.
struct Part {
  bool receives = false;
  int peer = -1;
  char* data = nullptr;  // the owner's memory, until all parts are there
  uint64_t nbytes = 0;
};

}  // namespace multiworld
