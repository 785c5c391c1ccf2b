#include "messages.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core.h"

namespace multiworld {
namespace {

// How many receives a peer may have waiting at us; each costs us memory.
constexpr uint64_t max_waiting = 1 << 16;
// What is said of a tensor on the device: bytes of its payload, then its shape.
constexpr uint64_t length_bytes = 8;
constexpr uint64_t max_said_bytes = length_bytes + 8 * 255 + 1;

}  // namespace

void Messages::send(const SendRef& operation) {
  sends_[operation->key].push_back(operation);
  match(operation->key);
}

void Messages::receive(const ReceiveRef& operation) {
  uint64_t key = operation->key;
  if (ready(key)) {
    take_kept(operation);
  } else if (orphans_.find(key)) {  // messages keep their order
    blocked_[key].push_back(operation);
  } else {
    post(operation);
  }
}

// Nothing was sent if it was not matched; else it goes on in the background, with a copy of what is left.
void Messages::withdraw(const SendRef& operation) {
  operation->withdrawn = true;
  if (!operation->done() && !operation->matched && operation->offered < 0) {
    sends_.remove(operation->key, [&](const SendRef& one) { return one == operation; });
    core_.discard(*operation);
  } else {
    core_.give_back(*operation);
  }
}

// The post is cancelled; a message that is under way already is kept for the next receive.
void Messages::withdraw(const ReceiveRef& operation) {
  operation->withdrawn = true;
  core_.discard(*operation);
  uint64_t key = operation->key;
  if (blocked_.remove(key, [&](const ReceiveRef& one) { return one == operation; })) {
    decline(*operation);
  } else if (operation->succeeded()) {  // between its end and its caller's waking
    withdraw_arrived(operation);
  } else if (operation->arriving) {
    orphans_[key].push_back(operation);
  } else if (operation->seq >= 0 && wanted_.contains(uint32_t(operation->seq))) {
    orphans_[key].push_back(operation);
    core_.put(peer, Kind::cancel, {}, uint32_t(operation->seq), key);
  }
  core_.give_back(*operation);
}

// The message is put back in its place. One on the device may be on its way still, or lie in the caller's memory.
void Messages::withdraw_arrived(const ReceiveRef& operation) {
  if (operation->taken) {
    ReceiveRef message = std::move(operation->taken);
    return keep(message);  // nothing of it was copied yet
  }
  bool moves = operation->lies_on_device && (operation->borrowed || operation->arriving);
  if (!moves) return keep(operation);
  orphans_[operation->key].push_back(operation);
  if (operation->arriving) core_.resume(operation);  // its caller went on with the stream, but was not woken yet
}

void Messages::divert(ReceiveOperation& operation) {
  bool arriving = operation.arriving && core_.wire().receiving(peer);
  bool placed = operation.placed;
  char* whole = operation.to;
  operation.placed = false;
  operation.to = nullptr;
  if (!placed || !(arriving || operation.succeeded())) return;  // else memory is found when the payload comes
  uint64_t length = operation.signature.nbytes;
  Memory own;
  try {
    own = Memory(length);
  } catch (const std::bad_alloc&) {
    if (arriving) core_.wire().redirect(peer, whole, nullptr, length);
    throw;
  }
  operation.own = own;
  operation.to = own.data();
  operation.placed = true;
  if (arriving) {
    core_.wire().redirect(peer, whole, own.data(), length);
  } else if (length) {
    memcpy(own.data(), whole, length);
  }
}

void Messages::on_post(const Signature& wanted, uint32_t seq, uint64_t key) {
  auto* sends = sends_.find(key);
  if (auto taken = taken_.find(key); taken != taken_.end()) {
    uint32_t offer = taken->second;
    taken_.erase(taken);
    if (sends && sends->front()->offered == offer) {
      SendRef operation = sends->front();
      sends->pop_front();
      answer(*operation, {seq, wanted});
      match(key);
      return;
    }
  }
  posts_[key].push_back({seq, wanted});
  one_more();
  if (sends) match(key);
}

Placement Messages::on_data(const Header& header) {
  ReceiveRef operation;
  if (auto found = wanted_.find(header.seq); found != wanted_.end()) {
    operation = found->second;
    wanted_.erase(found);
  }
  if (header.flags == mode_device || header.flags == mode_device_tensor) return on_device_data(operation, header);
  uint16_t mode = operation ? operation->signature.mode : uint16_t(mode_fixed);
  bool admitted = operation && mode != mode_device && (mode == mode_fixed ? header.nbytes == operation->signature.nbytes
                                                                          : header.nbytes <= operation->signature.nbytes);
  if (!admitted) {
    core_.protocol_error(peer, "payload of " + std::to_string(header.nbytes) + " bytes that was not asked for");
    return {};
  }
  operation->arriving = true;
  operation->dtype = header.dtype;
  operation->length = header.nbytes;
  if (!operation->placed) {
    operation->own = Memory(header.nbytes);
    operation->to = operation->own.data();
    operation->placed = true;
  }
  return {true, operation->to, operation, {}};
}

void Messages::on_reject(const Signature& theirs, uint32_t seq) {
  auto found = wanted_.find(seq);
  if (found == wanted_.end()) return;
  ReceiveRef operation = found->second;
  wanted_.erase(found);
  if (forget_orphan(operation)) unblock(operation->key);
  core_.mismatch(*operation, theirs);
}

// Too late if the payload is on its way.
void Messages::on_cancel(uint32_t seq, uint64_t key) {
  if (posts_.remove(key, [&](const Post& one) { return one.seq == seq; })) {
    waiting_--;
    core_.put(peer, Kind::cancelled, {}, seq, key);
  }
}

void Messages::on_cancelled(uint32_t seq) {
  auto found = wanted_.find(seq);
  if (found == wanted_.end()) return;
  ReceiveRef operation = found->second;
  wanted_.erase(found);
  if (!operation->withdrawn) {
    core_.protocol_error(peer, "a receive was withdrawn that we wait for");
  } else if (forget_orphan(operation)) {
    unblock(operation->key);
  }
}

void Messages::on_any(uint32_t seq, uint64_t key) {
  any_posts_[key].push_back(seq);
  one_more();
  match(key);
}

// What was offered for it is free again.
void Messages::on_any_done(uint32_t seq, uint64_t key) {
  forget_any(seq, key);
  auto* sends = sends_.find(key);
  if (sends && sends->front()->offered == seq) {
    sends->front()->offered = -1;
    if (sends->front()->withdrawn) {
      core_.drop(*sends->front());
      sends->pop_front();
    }
  }
  match(key);
}

void Messages::on_take(uint32_t seq, uint64_t key) {
  forget_any(seq, key);
  auto* sends = sends_.find(key);
  if (sends && sends->front()->offered == seq) taken_[key] = seq;
}

void Messages::arrived(const ReceiveRef& operation) {
  operation->arriving = false;
  operation->arrival = ++arrivals_;
  if (!operation->withdrawn) {
    core_.complete(*operation);
  } else {
    forget_orphan(operation);
    keep(operation);
  }
}

// The peer begins to send on the device. Of a tensor with its shape it says the length here, and the shape.
Placement Messages::on_device_data(const ReceiveRef& operation, const Header& header) {
  bool exact = header.flags == mode_device;
  bool fits = exact ? header.nbytes == 0 : length_bytes < header.nbytes && header.nbytes <= max_said_bytes;
  if (!fits || !operation || !operation->on_device || operation->signature.mode != (exact ? mode_device : mode_tensor)) {
    core_.protocol_error(peer, "a payload on the device that was not asked for");
    return {};
  }
  operation->arrival = ++arrivals_;
  operation->arriving = operation->lies_on_device = true;
  operation->dtype = header.dtype;
  if (exact) {
    operation->length = operation->signature.nbytes;
    transfer(operation);
    return {};
  }
  Memory said(header.nbytes);
  return {true, said.data(), operation, said};
}

void Messages::described(const ReceiveRef& operation, const Memory& said) {
  memcpy(&operation->length, said.data(), length_bytes);
  if (operation->length > operation->signature.nbytes) {
    core_.protocol_error(peer, "a tensor of " + std::to_string(operation->length) + " bytes that was not asked for");
    return;
  }
  operation->shape.assign(said.data() + length_bytes, said.size() - length_bytes);
  transfer(operation);
}

void Messages::transfer(const ReceiveRef& operation) {
  if (operation->length) {
    core_.launch(*operation);
  } else {
    landed(operation);
  }
}

void Messages::landed(const ReceiveRef& operation) {
  operation->arriving = false;
  if (operation->withdrawn && !operation->borrowed) {
    keep_landed(operation);
  } else {
    core_.complete(*operation);
  }
}

void Messages::keep_landed(const ReceiveRef& operation) {
  operation->borrowed = false;
  forget_orphan(operation);
  keep(operation);
}

bool Messages::ready(uint64_t key) {
  auto* kept = kept_.find(key);
  if (!kept) return false;
  auto* orphans = orphans_.find(key);
  int64_t first = kept->front()->arrival;
  return !orphans || std::none_of(orphans->begin(), orphans->end(), [&](const ReceiveRef& one) {
    return 0 <= one->arrival && one->arrival < first;
  });
}

void Messages::match(uint64_t key) {
  // An offered message and all behind it wait for the answer: messages of one key keep their order.
  for (;;) {
    auto* sends = sends_.find(key);
    auto* posts = posts_.find(key);
    if (!sends || !posts || sends->front()->offered >= 0) break;
    waiting_--;
    SendRef operation = sends->front();
    Post post = posts->front();
    sends->pop_front();
    posts->pop_front();
    answer(*operation, post);
  }
  auto* sends = sends_.find(key);
  auto* any_posts = any_posts_.find(key);
  if (sends && any_posts && sends->front()->offered < 0) {
    sends->front()->offered = any_posts->front();
    core_.put(peer, Kind::offer, {}, any_posts->front(), key);
  }
}

void Messages::answer(SendOperation& operation, const Post& post) {
  if (post.signature.admits(operation.signature)) {
    operation.matched = true;
    if (operation.on_device) return send_on_device(operation, post.seq);
    Header header{uint8_t(Kind::data), operation.signature.dtype, operation.signature.mode,
                  post.seq,            operation.key,             operation.signature.nbytes};
    core_.wire().put(peer, header, operation.payload, {operation.tail.data(), operation.tail.size()}, &operation);
  } else {
    core_.put(peer, Kind::reject, operation.signature, post.seq, operation.key);
    core_.mismatch(operation, post.signature);
  }
}

// What is said goes out on the lane, and with it the backend begins to send.
void Messages::send_on_device(SendOperation& operation, uint32_t seq) {
  uint16_t mode = operation.signature.mode == mode_device ? mode_device : mode_device_tensor;
  Header header{uint8_t(Kind::data), operation.signature.dtype, mode, seq, operation.key, operation.tail.size()};
  core_.wire().put(peer, header, {operation.tail.data(), operation.tail.size()}, {}, nullptr);
  if (operation.signature.nbytes) {
    core_.launch(operation);
  } else {
    core_.complete(operation);
  }
}

void Messages::post(const ReceiveRef& operation) {
  uint32_t seq = uint32_t(++posted_);
  operation->seq = seq;
  wanted_[seq] = operation;
  if (operation->offer >= 0) {
    core_.put(peer, Kind::take, {}, uint32_t(operation->offer), operation->key);
    operation->offer = -1;
  }
  core_.put(peer, Kind::post, operation->signature, seq, operation->key);
}

// Leave the offer that it was to answer, if any: it needs no message of the peer's any more.
void Messages::decline(ReceiveOperation& operation) {
  if (operation.offer >= 0) core_.put(peer, Kind::any_done, {}, uint32_t(operation.offer), operation.key);
  operation.offer = -1;
}

// Keep a message without a waiter for the next receive.
void Messages::keep(const ReceiveRef& operation) {
  core_.give_back(*operation);
  uint64_t key = operation->key;
  auto& kept = kept_[key];
  // By arrival, not by the order of the withdrawals: several receives may be withdrawn at once, in any order.
  auto place = std::upper_bound(kept.begin(), kept.end(), operation,
                                [](const ReceiveRef& a, const ReceiveRef& b) { return a->arrival < b->arrival; });
  kept.insert(place, operation);
  serve_posted(key);
  unblock(key);
  core_.offer_kept(*this, key);
}

// Give what is kept to receives that are posted already: the peer may have nothing more to send for them. Their posts are
// withdrawn; what the peer has sent for them meanwhile is kept in its turn.
void Messages::serve_posted(uint64_t key) {
  std::vector<ReceiveRef> posted;
  for (auto& [seq, one] : wanted_) {
    if (one->key == key && !one->withdrawn) posted.push_back(one);
  }
  uint32_t last = uint32_t(posted_);  // numbers begin anew: the oldest is the farthest from the last
  std::sort(posted.begin(), posted.end(), [&](const ReceiveRef& a, const ReceiveRef& b) {
    return uint32_t(last - uint32_t(a->seq)) > uint32_t(last - uint32_t(b->seq));
  });
  for (auto& operation : posted) {
    if (!ready(key)) return;
    auto post = std::make_shared<ReceiveOperation>(*this, key, operation->signature, nullptr, false, operation->on_device);
    post->peer = peer;
    post->seq = operation->seq;
    operation->seq = -1;
    wanted_[uint32_t(post->seq)] = post;
    take_kept(operation);
    withdraw(post);
  }
}

void Messages::take_kept(const ReceiveRef& operation) {
  auto* kept = kept_.find(operation->key);
  ReceiveRef message = kept->front();
  kept->pop_front();
  decline(*operation);
  Signature came = message->signature;
  came.dtype = message->dtype;
  if (message->lies_on_device) operation->taken = message;
  if (!(operation->signature == came || (operation->signature.mode == came.mode && !is_exact(came.mode)))) {
    core_.mismatch(*operation, came);
    return;
  }
  if (message->lies_on_device) {  // its caller copies it
  } else if (operation->placed) {
    if (message->length) memcpy(operation->to, message->to, message->length);
  } else {
    operation->own = message->own;
    operation->to = message->to;
    operation->placed = true;
  }
  operation->length = message->length;
  operation->dtype = message->dtype;
  operation->arrival = message->arrival;
  core_.complete(*operation);
}

bool Messages::forget_orphan(const ReceiveRef& operation) {
  return orphans_.remove(operation->key, [&](const ReceiveRef& one) { return one == operation; });
}

void Messages::unblock(uint64_t key) {
  while (auto* blocked = blocked_.find(key)) {
    if (!ready(key) && orphans_.find(key)) return;
    ReceiveRef operation = blocked->front();
    blocked->pop_front();
    receive(operation);
  }
}

void Messages::forget_any(uint32_t seq, uint64_t key) {
  if (any_posts_.remove(key, [&](uint32_t one) { return one == seq; })) waiting_--;
}

void Messages::one_more() {
  if (++waiting_ > max_waiting) {
    core_.protocol_error(peer, "more than " + std::to_string(max_waiting) + " receives at once");
  }
}

}  // namespace multiworld
