#include "core.h"

#include <algorithm>

namespace multiworld {
namespace {

// How many groups of a world may have collectives; a peer that names more makes them up.
constexpr size_t max_groups = 1 << 16;
// Tags of callers' messages are below this; parts of collectives are numbered above it.
constexpr uint64_t part_bit = uint64_t(1) << 31;

}  // namespace

Core::Core(int rank, const std::vector<int>& peers, uint64_t max_message_bytes, Wire& wire, Host& host)
    : rank_(rank), max_message_bytes_(max_message_bytes), wire_(wire), host_(host) {
  for (int peer : peers) messages_.try_emplace(peer, *this, peer);
}

OperationRef Core::send(int peer, uint64_t key, Signature signature, Span payload, std::string tail, bool borrowed,
                        bool on_device, void* after) {
  auto& messages = messages_.at(peer);
  auto operation =
      std::make_shared<SendOperation>(messages, key, signature, payload, std::move(tail), borrowed, on_device, after);
  operation->peer = peer;
  if (begin(operation, {peer})) messages.send(operation);
  return operation;
}

OperationRef Core::receive(int peer, uint64_t key, Signature signature, char* to, bool borrowed, bool on_device,
                           void* after) {
  auto& messages = messages_.at(peer);
  auto operation = std::make_shared<ReceiveOperation>(messages, key, signature, to, borrowed, on_device, after);
  operation->peer = peer;
  // A message from before the peer left can still be received.
  bool kept = !departed_.empty() && messages.keeps(key);
  if (begin(operation, kept ? std::vector<int>{} : std::vector<int>{peer})) messages.receive(operation);
  return operation;
}

OperationRef Core::receive_any(const std::vector<int>& peers, uint64_t key, Signature signature, char* to, bool borrowed,
                               bool on_device, void* after) {
  std::vector<Messages*> candidates;
  bool lies_ready = false, all_gone = true;
  for (int peer : peers) {
    candidates.push_back(&messages_.at(peer));
    lies_ready |= candidates.back()->keeps(key);
    all_gone &= departed_.contains(peer);
  }
  auto any = std::make_shared<AnyReceive>(key, signature, to, borrowed, on_device, after, candidates);
  if (!begin(any, all_gone && !lies_ready ? peers : std::vector<int>{})) return any;
  any_receives_.push_back(any);
  for (Messages* one : candidates) {
    if (take_kept(any, *one)) return any->chosen;
  }
  any->seq = next_any_++;
  for (Messages* one : candidates) put(one->peer, Kind::any, {}, uint32_t(any->seq), key);
  return any;
}

CollectiveRef Core::collective(uint64_t number, std::vector<int> ranks, std::string fingerprint, bool launches,
                               const std::vector<Span>& outgoing) {
  std::vector<int> gone;
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(gone), [&](int rank) { return departed_.contains(rank); });
  auto operation = std::make_shared<CollectiveOperation>(number, std::move(ranks), std::move(fingerprint), launches);
  if (begin(operation, gone)) groups_.try_emplace(number, *this, number).first->second.start(operation, outgoing);
  return operation;
}

void Core::exchange(const CollectiveRef& whole, const std::vector<Part>& parts) {
  uint64_t key = whole->group << 32 | part_bit | (whole->seq & (part_bit - 1));
  whole->parts += parts.size();
  for (const Part& one : parts) {
    Signature signature{mode_fixed, 0, one.nbytes};
    OperationRef part = one.receives ? receive(one.peer, key, signature, one.data, true)
                                     : send(one.peer, key, signature, {one.data, one.nbytes}, {}, true);
    if (part->done()) {
      part_over(*part, whole);
    } else {
      part->whole = whole;
    }
  }
}

void Core::part_over(const Operation& part, const CollectiveRef& whole) {
  if (part.outcome == Outcome::mismatch) protocol_error(part.peer, "a part of a collective that all agreed on differs");
  if (part.succeeded() && --whole->parts == 0 && !whole->done()) launch(*whole);
}

bool Core::begin(const OperationRef& operation, const std::vector<int>& peers) {
  for (int peer : peers) {
    if (departed_.contains(peer)) {
      host_.lost(peer, Loss::left, "rank " + std::to_string(peer) + " left the world");
      break;
    }
  }
  if (ended_) {
    fail(*operation, Outcome::ended);
    return false;
  }
  under_way_.emplace(operation.get(), operation);
  return true;
}

void Core::withdraw(const OperationRef& operation) {
  switch (operation->type) {
    case Operation::Type::send: {
      auto send = std::static_pointer_cast<SendOperation>(operation);
      send->messages.withdraw(send);
      return;
    }
    case Operation::Type::receive: {
      auto receive = std::static_pointer_cast<ReceiveOperation>(operation);
      receive->messages.withdraw(receive);
      return;
    }
    case Operation::Type::any: {
      auto& any = static_cast<AnyReceive&>(*operation);
      any.withdrawn = true;
      discard(any);
      if (!any.done()) close(any, -1);  // else the world has ended, and with it all that was asked
      return;
    }
    case Operation::Type::collective:
      operation->withdrawn = true;  // the others count on it: it goes on
  }
}

bool Core::goes_on(const Operation& operation) const {
  switch (operation.type) {
    case Operation::Type::send: {
      auto& send = static_cast<const SendOperation&>(operation);
      return send.on_device && !send.done() && (send.matched || send.offered >= 0);
    }
    case Operation::Type::receive:
      return static_cast<const ReceiveOperation&>(operation).lies_on_device;
    case Operation::Type::any:
      return false;
    case Operation::Type::collective:
      return static_cast<const CollectiveOperation&>(operation).launches && !operation.done();
  }
  return false;
}

Placement Core::on_frame(int peer, const Header& header) {
  auto& messages = messages_.at(peer);
  Signature signature{header.flags, header.dtype, header.nbytes};
  switch (Kind(header.kind)) {
    case Kind::data:
      return messages.on_data(header);
    case Kind::post:
      messages.on_post(signature, header.seq, header.key);
      return {};
    case Kind::fingerprint:
      if (Agreement* agreement = group(header.key)) return agreement->on_fingerprint(peer, header);
      protocol_error(peer, "a collective of one group more than " + std::to_string(max_groups));
      return {};
    case Kind::value:
      if (!host_.expects_value(peer, header)) return {};
      {
        Memory memory(header.nbytes);
        return {true, memory.data(), {}, memory};
      }
    case Kind::reject:
      messages.on_reject(signature, header.seq);
      return {};
    case Kind::cancel:
      messages.on_cancel(header.seq, header.key);
      return {};
    case Kind::cancelled:
      messages.on_cancelled(header.seq);
      return {};
    case Kind::any:
      messages.on_any(header.seq, header.key);
      return {};
    case Kind::any_done:
      messages.on_any_done(header.seq, header.key);
      return {};
    case Kind::offer:
      on_offer(peer, header.seq);
      return {};
    case Kind::take:
      messages.on_take(header.seq, header.key);
      return {};
    case Kind::bye:
      host_.on_bye(peer, header.flags != 0);
      return {};
  }
  protocol_error(peer, "frame of unknown kind " + std::to_string(header.kind));
  return {};
}

void Core::arrived(int peer, const Header& header, Placement& placement) {
  if (placement.receive && placement.memory) {
    placement.receive->messages.described(placement.receive, placement.memory);
  } else if (placement.receive) {
    placement.receive->messages.arrived(placement.receive);
  } else if (header.kind == uint8_t(Kind::fingerprint)) {
    groups_.at(header.key).arrived(peer, header, placement.memory);
  } else {
    host_.on_value(peer, header, placement.memory);
  }
}

// The groups' collectives, which a peer may have begun before us.
Agreement* Core::group(uint64_t number) {
  auto found = groups_.find(number);
  if (found != groups_.end()) return &found->second;
  if (groups_.size() >= max_groups) return nullptr;
  return &groups_.try_emplace(number, *this, number).first->second;
}

void Core::settle(Operation& operation, Outcome outcome) {
  if (operation.done()) return;
  OperationRef alive;
  if (auto found = under_way_.find(&operation); found != under_way_.end()) {
    alive = found->second;
    under_way_.erase(found);
  }
  operation.outcome = outcome;
  host_.settled(operation);
  if (CollectiveRef whole = std::move(operation.whole)) part_over(operation, whole);
}

void Core::launch(Operation& operation) {
  operation.launched = true;
  host_.launch(operation);
}

void Core::drop(Operation& operation) {
  discard(operation);
  host_.dropped(operation);
}

// Its end comes later than it was told; after the core's own, it does not come.
void Core::resume(const OperationRef& operation) {
  if (ended_) return;
  operation->outcome = Outcome::pending;
  under_way_.emplace(operation.get(), operation);
}

void Core::fail(Operation& operation, Outcome outcome) {
  if (operation.done()) return;
  give_back(operation);
  settle(operation, outcome);
}

void Core::mismatch(Operation& operation, const Signature& theirs) {
  if (operation.done()) return;
  operation.theirs = theirs;
  fail(operation, Outcome::mismatch);
}

// Neither read nor write the caller's memory from here on: copy what is needed of it, divert what comes.
void Core::give_back(Operation& operation) {
  if (operation.borrowed && operation.type == Operation::Type::receive) {
    auto& receive = static_cast<ReceiveOperation&>(operation);
    // On the device it is under way to the caller's memory, or there, until it is copied.
    if (receive.on_device && receive.withdrawn && receive.arrival >= 0) return;
    receive.borrowed = false;
    receive.messages.divert(receive);
  } else if (operation.borrowed && operation.type == Operation::Type::send && !operation.done()) {
    auto& send = static_cast<SendOperation&>(operation);
    send.borrowed = false;
    if (send.matched) {
      wire_.disown(send.peer, send);
    } else if (send.withdrawn) {  // an offered message goes on; a failed one is not sent
      send.take();
    }
  }
}

void Core::put(int peer, Kind kind, const Signature& signature, uint32_t seq, uint64_t key) {
  Header header{uint8_t(kind), signature.dtype, signature.mode, seq, key, signature.nbytes};
  wire_.put(peer, header, {}, {}, nullptr);
}

// The peer has a message for our receive of that number, or had until we told it otherwise.
void Core::on_offer(int peer, uint32_t seq) {
  for (auto& any : any_receives_) {
    if (any->seq != seq) continue;
    for (Messages* one : any->candidates) {
      if (one->peer == peer) {
        choose(AnyRef(any), *one, true);
        return;
      }
    }
    return;
  }
}

// Receive from this peer, and from no other. An offer binds the peer: its message waits for our answer, which comes with
// the receive (take). So no other receive of ours can take it meanwhile, and leave us waiting for a peer without another.
void Core::choose(const AnyRef& any, Messages& messages, bool offered) {
  ReceiveRef chosen = any->chosen =
      std::make_shared<ReceiveOperation>(messages, any->key, any->signature, any->to, any->borrowed, any->on_device,
                                         any->after);
  chosen->peer = messages.peer;
  if (offered) chosen->offer = any->seq;
  discard(*any);
  under_way_.emplace(chosen.get(), chosen);
  host_.chosen(*any, chosen);
  close(*any, offered ? messages.peer : -1);
  messages.receive(chosen);
}

bool Core::take_kept(const AnyRef& any, Messages& messages) {
  if (!any->chosen && messages.ready(any->key)) choose(any, messages, false);
  return any->chosen != nullptr;
}

void Core::offer_kept(Messages& messages, uint64_t key) {
  for (auto& any : std::vector<AnyRef>(any_receives_)) {
    if (any->key != key || std::find(any->candidates.begin(), any->candidates.end(), &messages) == any->candidates.end()) {
      continue;
    }
    if (take_kept(any, messages)) return;
  }
}

// Take no offers any more, and tell all but the peer whose offer is being answered.
void Core::close(AnyReceive& any, int answering) {
  std::erase_if(any_receives_, [&](const AnyRef& one) { return one.get() == &any; });
  if (any.seq < 0) return;
  for (Messages* one : any.candidates) {
    if (one->peer != answering) put(one->peer, Kind::any_done, {}, uint32_t(any.seq), any.key);
  }
}

bool Core::depart(int peer, bool gives_up) {
  departed_.insert(peer);
  // What was withdrawn goes on for the peer's sake only.
  auto under_way = under_way_;
  for (auto& [operation, ref] : under_way) {
    if (operation->withdrawn && operation->type == Operation::Type::send && needs(*operation, peer)) drop(*operation);
  }
  for (auto& [operation, ref] : under_way_) {
    if (needs(*operation, peer)) return false;
    if (gives_up && operation->type == Operation::Type::collective) {
      auto& ranks = static_cast<CollectiveOperation&>(*operation).ranks;
      if (std::count(ranks.begin(), ranks.end(), peer)) return false;
    }
  }
  return true;
}

bool Core::gives_up() const {
  return std::any_of(under_way_.begin(), under_way_.end(),
                     [](const auto& entry) { return entry.first->type == Operation::Type::collective; });
}

bool Core::needs(int peer) const {
  return std::any_of(under_way_.begin(), under_way_.end(),
                     [&](const auto& entry) { return needs(*entry.first, peer); });
}

bool Core::needs(const Operation& operation, int peer) const {
  if (operation.type == Operation::Type::collective) {
    auto& collective = static_cast<const CollectiveOperation&>(operation);
    bool member = std::count(collective.ranks.begin(), collective.ranks.end(), peer);
    return member && peer != rank_ && !collective.heard.contains(peer);
  }
  // What is under way on the device ends without the peer's lane.
  if (operation.type != Operation::Type::any) return operation.peer == peer && !operation.launched;
  auto& any = static_cast<const AnyReceive&>(operation);
  return std::all_of(any.candidates.begin(), any.candidates.end(),
                     [&](const Messages* one) { return departed_.contains(one->peer); });
}

// World ranks that it waits for now.
std::vector<int> Core::awaited(const Operation& operation) const {
  std::vector<int> ranks;
  if (operation.type == Operation::Type::collective) {
    for (int rank : static_cast<const CollectiveOperation&>(operation).ranks) {
      bool moves = std::any_of(under_way_.begin(), under_way_.end(), [&](const auto& entry) {
        return entry.first->whole.get() == &operation && entry.first->peer == rank;
      });
      if (moves || needs(operation, rank)) ranks.push_back(rank);
    }
  } else if (operation.type == Operation::Type::any) {
    for (Messages* one : static_cast<const AnyReceive&>(operation).candidates) ranks.push_back(one->peer);
  } else {
    ranks.push_back(operation.peer);
  }
  return ranks;
}

void Core::end() {
  ended_ = true;
  auto under_way = under_way_;
  for (auto& [operation, ref] : under_way) {
    // The backend may be at work on what is launched, whose end the host tells.
    if (!operation->launched) fail(*operation, Outcome::ended);
  }
  any_receives_.clear();
}

}  // namespace multiworld
