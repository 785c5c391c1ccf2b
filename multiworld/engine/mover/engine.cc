#include "engine.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <set>
#include <system_error>
#include <utility>

#include "guard.h"

namespace multiworld {
namespace {

// A large payload gives way to others, and lets go of the lock, after this much.
constexpr uint64_t turn_bytes = 256 * 1024;
// A wait looks around this often, should a wake-up get lost.
constexpr int64_t look_around_ns = 1'000'000'000;
// And so much of one is read at once where it is wanted soon.
constexpr uint64_t drained_bytes = 8 << 20;
constexpr int most_events = 16;
// An event loop that has nothing else to do waits so long for operations between two turns, and so often.
constexpr int64_t attendance_ns = 900'000;
constexpr int most_peeks = 16;
// A leader looks for so long before it sleeps, where its last waits were short: to be woken on another core takes longer. If
// nothing comes meanwhile, so many short waits pass before it does so again: the peer may need this core.
constexpr int64_t look_ns = 50'000, prompt_ns = 150'000;
constexpr int least_prompt = 4, waits_without_look = 32;
constexpr uint32_t slot_bits = 24;
// The longest value that sets up a backend.
constexpr uint64_t max_value_bytes = 1 << 20;
// And so much of them waits for the owner at most.
constexpr uint64_t most_value_bytes = 16 << 20;
constexpr int uint8_of_nccl = 1;  // ncclUint8
// So many messages that were left by their callers are let go of together.
constexpr size_t most_over = 16;

int64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

std::vector<int> keys(const std::map<int, int>& map) {
  std::vector<int> found;
  for (auto& entry : map) found.push_back(entry.first);
  return found;
}

void ring(int eventfd) {
  uint64_t one = 1;
  [[maybe_unused]] ssize_t written = write(eventfd, &one, sizeof one);
}

// What an epoll watches a descriptor for that it has. Needs no memory, so that it does not fail.
void set(int epoll, int descriptor, uint32_t events) {
  epoll_event event{};
  event.events = events;
  epoll_ctl(epoll, EPOLL_CTL_MOD, descriptor, &event);
}

void quiet(int eventfd) {
  uint64_t count;
  [[maybe_unused]] ssize_t got = read(eventfd, &count, sizeof count);
}

// The engines of this process. A fork waits until none is being made or freed. The guard may use these to the very end.
std::mutex& all_mutex = *new std::mutex;
std::set<Engine*>& all = *new std::set<Engine*>;

}  // namespace

// Holds the lock, and wakes who has to look once it is free.
class Engine::Locked {
 public:
  explicit Locked(Engine& engine) : engine_(engine), lock_(engine.mutex_) {}
  ~Locked() { unlock(); }

  void lock() { lock_.lock(); }
  void unlock() {
    std::vector<Slot*> awakened;
    awakened.swap(engine_.awakened_);
    lock_.unlock();
    for (Slot* slot : awakened) syscall(SYS_futex, &slot->word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }

 private:
  Engine& engine_;
  std::unique_lock<std::mutex> lock_;
};

Engine::Engine(int rank, const std::map<int, int>& lanes, uint64_t max_message_bytes)
    : core_(rank, keys(lanes), max_message_bytes, *this, *this) {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  host_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (epoll_ < 0 || host_ < 0) {
    int error = errno;
    close_all();
    throw std::system_error(error, std::generic_category());
  }
  epoll_event event{};
  event.events = EPOLLIN;
  for (auto [peer, fd] : lanes) {
    auto on_end = [this](Lane& lane, int error) { lane_ended(lane, error); };
    Lane& lane = lanes_.try_emplace(peer, fd, peer, core_, on_end).first->second;
    event.data.ptr = &lane;
    if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0) continue;
    int error = errno;
    for (auto& [other, made] : lanes_) made.fd = -1;  // they stay the caller's
    close_all();
    throw std::system_error(error, std::generic_category());
  }
  std::lock_guard guard(all_mutex);
  [[maybe_unused]] static int hooked = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  all.insert(this);
}

Engine::~Engine() {
  std::lock_guard guard(all_mutex);
  all.erase(this);
  close_all();
}

void Engine::close_all() {
  for (int* fd : {&epoll_, &loop_, &host_}) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
  }
}

void Engine::before_fork() { all_mutex.lock(); }

void Engine::after_fork_in_parent() { all_mutex.unlock(); }

// Its thread is the only one here. What it finds may be half done: only descriptors are touched. The parent's epoll forgets
// nothing, as it has its own reference to each socket.
void Engine::after_fork_in_child() {
  for (Engine* engine : all) {
    engine->forked_ = true;
    engine->close_all();
    for (auto& [peer, lane] : engine->lanes_) lane.abandon();
  }
  all.clear();  // nobody may lock theirs
  Guard::after_fork_in_child();
  all_mutex.unlock();
}

void Engine::begin_at(const std::vector<int>& peers, const std::string& mark) {
  Locked lock(*this);
  for (int peer : peers) lanes_.at(peer).begin_at(mark);
}

// ---- starts

OperationRef Engine::made(const Message& message) {
  if (message.receives) {
    bool borrowed = message.data || message.signature.mode == mode_device;
    return core_.receive(message.peer, message.key, message.signature, message.data, borrowed, message.on_device,
                         message.after);
  }
  if (message.on_device) {
    Span payload{message.data, message.signature.nbytes};
    return core_.send(message.peer, message.key, message.signature, payload, message.tail, false, true, message.after);
  }
  Span payload{message.data, message.signature.nbytes - message.tail.size()};
  return core_.send(message.peer, message.key, message.signature, payload, message.tail, message.borrowed);
}

uint64_t Engine::start(const Message& message) {
  Locked lock(*this);
  return take_up(made(message));
}

std::vector<uint64_t> Engine::start(const std::vector<Message>& messages) {
  Locked lock(*this);
  std::vector<uint64_t> ids;
  std::set<Lane*> held;
  for (auto& message : messages) held.insert(&lanes_.at(message.peer));
  for (Lane* lane : held) lane->hold();
  auto let_out = [&] {
    for (Lane* lane : held) lane->release(), watch(*lane);
  };
  try {
    for (auto& message : messages) ids.push_back(take_up(made(message)));
  } catch (...) {
    let_out();
    throw;
  }
  let_out();
  return ids;
}

uint64_t Engine::receive_any(const std::vector<int>& peers, uint64_t key, Signature signature, char* to, bool on_device,
                             void* after) {
  Locked lock(*this);
  return take_up(core_.receive_any(peers, key, signature, to, true, on_device, after));
}

uint64_t Engine::collective(uint64_t group, std::vector<int> ranks, std::string fingerprint, bool launches,
                            const std::vector<Span>& outgoing) {
  Locked lock(*this);
  return take_up(core_.collective(group, std::move(ranks), std::move(fingerprint), launches, outgoing));
}

void Engine::exchange(uint64_t id, const std::vector<Part>& parts) {
  Locked lock(*this);
  if (Slot* slot = find(id)) core_.exchange(std::static_pointer_cast<CollectiveOperation>(slot->operation), parts);
}

uint64_t Engine::take_up(const OperationRef& operation) {
  if (operation->id) return operation->id;  // it was launched as it began
  if (free_.empty()) {
    free_.push_back(uint32_t(slots_.size()));
    slots_.emplace_back().id = free_.back();
  }
  Slot& slot = slots_[free_.back()];
  free_.pop_back();
  slot.id += uint64_t(1) << slot_bits;  // a number is never used again
  slot.operation = operation;
  operation->id = slot.id;
  return slot.id;
}

Engine::Slot* Engine::find(uint64_t id) {
  uint64_t place = id & ((uint64_t(1) << slot_bits) - 1);
  if (place >= slots_.size() || slots_[place].id != id || !slots_[place].operation) return nullptr;
  return &slots_[place];
}

void Engine::let_go(Slot& slot) {
  wake(slot);
  if (slot.operation->type == Operation::Type::receive) {
    if (ReceiveRef message = static_cast<ReceiveOperation&>(*slot.operation).taken) dropped(*message);
  }
  has_begun(slot);
  slot.launcher.reset();
  slot.operation->id = 0;
  slot.operation.reset();
  notified_ -= slot.notify;
  slot.notify = slot.waiting = slot.streamed = slot.enqueued = slot.begun_by_owner = false;
  left_ -= std::exchange(slot.left, false);
  free_.push_back(uint32_t(slot.id & ((uint64_t(1) << slot_bits) - 1)));
}

// ---- waiting

uint64_t Engine::start_plain(const Message& message) {
  Locked lock(*this);
  if (ended_ || said_bye_) return 0;
  if (message.on_device) {
    const Route& route = routes_[{message.peer, message.receives}];
    if (!route.launcher || route.owed || !message.data) return 0;
  }
  uint64_t id = take_up(made(message));
  find(id)->streamed = message.streamed;
  return id;
}

uint64_t Engine::start_plain(uint64_t group, std::vector<int> ranks, std::string fingerprint, const std::vector<Span>& outgoing) {
  Locked lock(*this);
  if (ended_ || said_bye_) return 0;
  return take_up(core_.collective(group, std::move(ranks), std::move(fingerprint), false, outgoing));
}

bool Engine::wait(uint64_t id, int64_t until, bool* interrupted) {
  Locked lock(*this);
  return wait(lock, id, until, interrupted);
}

bool Engine::wait(Locked& lock, uint64_t id, int64_t until, bool* interrupted, int loop) {
  Slot* slot = find(id);
  if (!slot) return true;
  auto over = [&] {
    Slot* now = find(id);  // another thread may let go of it meanwhile, and its place be another's
    return !now || now->done();
  };
  int64_t look_around = now_ns() + look_around_ns;
  slot->waiting = true;
  while (!over() && owed_.empty() && !*interrupted) {
    int64_t now = now_ns(), left = std::min(until, look_around) - now;
    // A signal that comes between two system calls interrupts neither.
    *interrupted = now >= look_around;
    if (left <= 0 || (leader_ && loop >= 0)) break;
    if (leader_) {
      follow(lock, *slot, left, interrupted);
    } else {
      lead(lock, *slot, left, interrupted, loop);
    }
  }
  if (find(id)) slot->waiting = false;
  if (!leader_) pass_the_lead();
  bool ended = over();
  *interrupted &= !ended;  // its outcome is not to be lost
  if (!owed_.empty() && (ended || *interrupted)) tell({Event::Type::owed});
  return ended;
}

void Engine::lead(Locked& lock, Slot& slot, int64_t patience_ns, bool* interrupted, int loop) {
  epoll_event events[most_events];
  pollfd both[] = {{epoll_, POLLIN, 0}, {loop, POLLIN, 0}};
  int patience_ms = int(patience_ns / 1'000'000) + 1;
  leader_ = &slot;
  listen(false);
  bool looks = !slot.launcher;  // what ends on the device needs this core for other threads
  lock.unlock();
  int64_t began = now_ns();
  int count = looks ? look_before_sleep(events) : 0;
  if (!count) {
    if (loop >= 0) count = poll(both, 2, patience_ms);
    if (count >= 0) count = epoll_wait(epoll_, events, most_events, loop < 0 ? patience_ms : 0);
  }
  int error = errno;
  lock.lock();
  leader_ = nullptr;
  prompt_ = now_ns() < began + prompt_ns ? std::min(prompt_ + 1, least_prompt) : std::min(prompt_, 0);
  *interrupted = (count < 0 && error == EINTR) || both[1].revents;
  if (kicked_) epoll_ctl(epoll_, EPOLL_CTL_DEL, host_, nullptr);
  kicked_ = false;
  serving_ = &slot;
  turns_++;
  serve(events, count);
  serving_ = nullptr;
}

int Engine::look_before_sleep(epoll_event* events) {
  if (prompt_ < least_prompt) return 0;
  int64_t until = now_ns() + look_ns;
  int count = 0;
  do count = epoll_wait(epoll_, events, most_events, 0);
  while (!count && now_ns() < until);
  if (!count) prompt_ = -waits_without_look;
  return count;
}

void Engine::follow(Locked& lock, Slot& slot, int64_t patience_ns, bool* interrupted) {
  uint32_t seen = slot.word;
  followers_.push_back(&slot);
  lock.unlock();
  timespec patience{patience_ns / 1'000'000'000, patience_ns % 1'000'000'000};
  long failed = syscall(SYS_futex, &slot.word, FUTEX_WAIT_PRIVATE, seen, &patience, nullptr, 0);
  int error = errno;
  lock.lock();
  *interrupted = failed < 0 && error == EINTR;
  std::erase(followers_, &slot);
}

void Engine::pass_the_lead() {
  if (followers_.empty()) {
    if (notified_) {
      listen(true);
    } else if (loop_ >= 0 && !listens_) {  // who has waited soon waits again
      be_guarded();
    }
    return;
  }
  Slot* next = followers_.front();
  next->word++;
  awakened_.push_back(next);
}

void Engine::serve(const epoll_event* events, int count) {
  for (int i = 0; i < count; i++) {
    auto* lane = static_cast<Lane*>(events[i].data.ptr);
    if (!lane || lane->ended()) continue;
    try {
      if (events[i].events & EPOLLOUT) lane->flush();
      if (events[i].events & ~uint32_t(EPOLLOUT)) lane->pump(turn_bytes);
    } catch (const std::bad_alloc&) {
      lost(lane->peer, Loss::protocol, "rank " + std::to_string(lane->peer) + " sent what there is no memory for");
    }
    watch(*lane);
  }
}

void Engine::watch(Lane& lane) {
  if (lane.ended()) return;
  if (lane.owes()) be_guarded();
  if (lane.watched_for_writing == lane.blocked()) return;
  lane.watched_for_writing = lane.blocked();
  epoll_event event{};
  event.events = EPOLLIN | (lane.blocked() ? uint32_t(EPOLLOUT) : 0);
  event.data.ptr = &lane;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, lane.fd, &event);
}

// ---- the guard

void Engine::be_guarded() {
  if (guarded_) return;
  guarded_ = true;
  turns_++;
  if (Guard::look()) return;
  guarded_ = false;  // it is asked again
  listen(true);
}

bool Engine::pay_all(std::vector<pollfd>& watched) {
  std::lock_guard guard(all_mutex);
  bool owing = false;
  for (Engine* engine : all) {
    bool ours = false;
    if (!engine->guarded_ || !engine->pay(&ours)) continue;
    owing = true;
    if (ours) watched.push_back({engine->epoll_, POLLIN, 0});
  }
  return owing;
}

// Move what is ready, unless others have done so since it was last asked; whether it is to be asked again.
bool Engine::pay(bool* ours) {
  Locked lock(*this);
  *ours = !leader_ && turns_ == seen_turns_;
  seen_turns_ = turns_;
  auto owes = [this] {
    return std::any_of(lanes_.begin(), lanes_.end(), [](const auto& entry) { return entry.second.owes(); });
  };
  if (*ours && owes()) {
    epoll_event events[most_events];
    size_t owed = owed_.size();
    serve(events, epoll_wait(epoll_, events, most_events, 0));
    if (owed_.size() > owed) tell({Event::Type::owed});  // the guard cannot begin it
  }
  if (*ours) listen(true);
  guarded_ = owes() || (loop_ >= 0 && !listens_ && !leader_);  // a leader asks when it goes
  return guarded_;
}

// ---- outcomes

// The outcome as the owner hears it.
Outcome Engine::told(const Slot& slot) {
  const Operation& operation = *slot.operation;
  if (!operation.done()) return slot.done() ? Outcome::enqueued : Outcome::pending;
  bool kept = operation.type == Operation::Type::receive && static_cast<const ReceiveOperation&>(operation).taken;
  return kept && operation.succeeded() ? Outcome::kept : operation.outcome;
}

OperationRef Engine::look(uint64_t id, Outcome* outcome) {
  Locked lock(*this);
  Slot* slot = find(id);
  if (outcome) {
    *outcome = slot ? told(*slot) : Outcome::pending;
    if (*outcome == Outcome::pending && !owed_.empty()) *outcome = Outcome::owed;
  }
  return slot ? slot->operation : nullptr;
}

void Engine::take(uint64_t id) {
  Locked lock(*this);
  Slot* slot = find(id);
  if (slot && (slot->operation->done() || slot->operation->withdrawn)) let_go(*slot);
}

Awaited Engine::awaited(uint64_t id) {
  Locked lock(*this);
  Slot* slot = find(id);
  if (!slot) return {};
  const Operation& operation = *slot->operation;
  bool matched = operation.type == Operation::Type::send && static_cast<const SendOperation&>(operation).matched;
  return {core_.awaited(operation), matched};
}

bool Engine::needs(int peer) {
  Locked lock(*this);
  return core_.needs(peer);
}

bool Engine::gives_up() {
  Locked lock(*this);
  return core_.gives_up();
}

bool Engine::keeps(int peer, uint64_t key) {
  Locked lock(*this);
  return core_.keeps(peer, key);
}

bool Engine::withdraw(uint64_t id, std::vector<Flown>* flown) {
  Locked lock(*this);
  Slot* slot = find(id);
  if (slot && flown) adopt(*slot, *flown), slot = find(id);
  if (!slot) return false;
  OperationRef operation = slot->operation;
  if (operation->withdrawn) return true;
  try {
    core_.withdraw(operation);
  } catch (const std::bad_alloc&) {
    lost(operation->peer, Loss::protocol, "there is no memory for what was withdrawn");
  }
  if (core_.goes_on(*operation)) return true;
  let_go(*slot);
  return false;
}

std::vector<Owed> Engine::owed() {
  Locked lock(*this);
  std::vector<Owed> owed;
  owed.swap(owed_);
  owed.insert(owed.end(), over_.begin(), over_.end());
  over_.clear();
  return owed;
}

void Engine::over(uint64_t id) {
  Locked lock(*this);
  if (Slot* slot = find(id)) core_.over(*slot->operation);
}

void Engine::landed(uint64_t id) {
  Locked lock(*this);
  if (Slot* slot = find(id)) core_.landed(std::static_pointer_cast<ReceiveOperation>(slot->operation));
}

void Engine::keep(uint64_t id) {
  Locked lock(*this);
  if (Slot* slot = find(id)) core_.keep(std::static_pointer_cast<ReceiveOperation>(slot->operation));
}

uint64_t Engine::on_device(const ReceiveRef& receive) {
  Locked lock(*this);
  return receive->taken ? receive->taken->id : receive->lies_on_device ? receive->id : 0;
}

// ---- launches without the owner

void Engine::connect(int peer, bool receives, std::shared_ptr<Launcher> launcher) {
  Locked lock(*this);
  if (!ended_) routes_[{peer, receives}].launcher = std::move(launcher);
}

void Engine::begun(uint64_t id) {
  Locked lock(*this);
  if (Slot* slot = find(id)) has_begun(*slot);
}

void Engine::has_begun(Slot& slot) {
  if (slot.owed) std::exchange(slot.owed, nullptr)->owed--;
}

// Launch a message; false if that is the owner's: it has no memory yet, or is behind such a one.
bool Engine::fly(MessageOperation& message, Slot& slot, Route& route) {
  bool receives = message.type == Operation::Type::receive;
  char* to = receives ? static_cast<ReceiveOperation&>(message).to : nullptr;
  const char* from = receives ? nullptr : static_cast<SendOperation&>(message).payload.data;
  if (!route.launcher || route.owed || message.withdrawn || slot.begun_by_owner || !(to || from)) return false;
  // The communicator has two members: who sends, and who receives.
  Call call{receives ? Call::Kind::recv : Call::Kind::send, from, to, message.signature.nbytes, uint8_of_nccl, 0, !receives};
  auto told = [weak = weak_from_this()](void (Engine::*how)(uint64_t)) {
    return [weak, how](uint64_t id) {
      if (std::shared_ptr<Engine> engine = weak.lock()) (engine.get()->*how)(id);
    };
  };
  bool adds = route.launcher->add(slot.id, {call}, message.after, false, told(&Engine::flown), told(&Engine::enqueued));
  if (!adds) return false;
  slot.launcher = route.launcher;
  return true;
}

void Engine::flown(uint64_t id) {
  Locked lock(*this);
  Slot* slot = find(id);
  if (slot && slot->launcher) land(*slot);
}

void Engine::enqueued(uint64_t id) {
  Locked lock(*this);
  Slot* slot = find(id);
  if (!slot || !slot->launcher) return;  // it has ended by now, or its owner hears it
  slot->enqueued = true;
  if (slot->streamed) report(*slot);
}

// The launch of a message that needs no owner has ended well.
void Engine::land(Slot& slot) {
  slot.launcher.reset();
  OperationRef operation = slot.operation;
  if (std::exchange(slot.left, false)) {
    over_.push_back({slot.id, false, operation->peer});
    if (!--left_ || over_.size() >= most_over) tell({Event::Type::owed});
  }
  if (operation->type == Operation::Type::receive) {
    core_.landed(std::static_pointer_cast<ReceiveOperation>(operation));
  } else {
    core_.over(*operation);
  }
}

std::vector<Flown> Engine::adopt(uint64_t id) {
  Locked lock(*this);
  std::vector<Flown> flown;
  for (Slot& slot : slots_) {
    if (slot.id == id && !slot.launcher) slot.begun_by_owner = true;
    if (!id || slot.id == id) adopt(slot, flown);
  }
  return flown;
}

void Engine::adopt(Slot& slot, std::vector<Flown>& flown) {
  if (!slot.launcher) return;
  Adopted adopted = slot.launcher->adopt(slot.id);
  if (adopted == Adopted::over) return land(slot);
  slot.launcher.reset();
  slot.streamed = false;
  left_ -= std::exchange(slot.left, false);
  notified_ -= std::exchange(slot.notify, false);  // its owner tells its end
  flown.push_back({slot.id, slot.operation->peer, adopted == Adopted::dropped});
}

std::string Engine::join(uint64_t id, void* stream) {
  std::shared_ptr<Launcher> launcher;
  {
    Locked lock(*this);
    if (Slot* slot = find(id)) launcher = slot->launcher;
  }
  return launcher ? launcher->join(id, stream) : std::string();
}

bool Engine::leave(uint64_t id) {
  Locked lock(*this);
  Slot* slot = find(id);
  if (!slot || slot->operation->done()) return true;
  slot->left = true, left_++;
  return false;
}

Outcome Engine::begin(uint64_t id, int loop) {
  Locked lock(*this);
  Slot* slot = find(id);
  if (slot && !slot->done() && !attend(lock, id, loop)) peek();
  slot = find(id);
  if (!slot) return Outcome::pending;
  if (loop != for_thread && !slot->done()) be_told(*slot);
  return told(*slot);
}

void Engine::attend(uint64_t id, int loop) {
  Locked lock(*this);
  attend(lock, id, loop);
}

bool Engine::attend(Locked& lock, uint64_t id, int loop) {
  if (loop < 0 || leader_) return false;
  if (!attended_until_) attended_until_ = now_ns() + attendance_ns;
  if (now_ns() >= attended_until_ || peeks_ >= most_peeks) return false;
  bool interrupted = false;
  peeks_++;
  wait(lock, id, attended_until_, &interrupted, loop);
  return true;
}

bool Engine::notify(uint64_t id) {
  Locked lock(*this);
  Slot* slot = find(id);
  if (slot && !slot->operation->done()) peek();
  if (!slot || slot->operation->done()) return false;
  be_told(*slot);
  return true;
}

void Engine::be_told(Slot& slot) {
  notified_ += !slot.notify;
  slot.notify = true;
  if (!leader_) listen(true);
  if (!owed_.empty()) ring_loop();
}

// Move what is there already, for one that would else be waited for; some times between two turns of the event loop, which has
// others to serve.
void Engine::peek() {
  if (leader_ || loop_ < 0 || peeks_ >= most_peeks) return;
  peeks_++, turns_++;
  epoll_event events[most_events];
  serve(events, epoll_wait(epoll_, events, most_events, 0));
  if (!owed_.empty()) ring_loop();
}

std::vector<uint64_t> Engine::progress() {
  Locked lock(*this);
  epoll_event events[most_events];
  in_progress_ = true;
  turns_++;
  peeks_ = 0, attended_until_ = 0;
  serve(events, epoll_wait(epoll_, events, most_events, 0));
  in_progress_ = false;
  if (rung_) set(loop_, host_, 0);
  rung_ = false;
  std::vector<uint64_t> done;
  done.swap(done_);
  if (!owed_.empty()) done.push_back(0);
  return done;
}

void Engine::settled(Operation& operation) {
  Slot* slot = operation.id ? find(operation.id) : nullptr;
  if (!slot) return;
  if (!operation.withdrawn) {
    report(*slot);
  } else if (!operation.launched) {
    dropped(operation);
  } else if (operation.type == Operation::Type::receive) {  // its caller copies it
    wake(*slot);
  } else {
    let_go(*slot);
  }
}

void Engine::dropped(Operation& operation) {
  if (operation.id) owed_.push_back({operation.id, false, operation.peer});
}

void Engine::launch(Operation& operation) {
  if (!operation.id) take_up(operation.shared_from_this());  // nobody waits for it, or not yet
  Slot& slot = *find(operation.id);
  if (operation.type != Operation::Type::collective) {
    Route& route = routes_[{operation.peer, operation.type == Operation::Type::receive}];
    if (fly(static_cast<MessageOperation&>(operation), slot, route)) return;
    slot.owed = &route, route.owed++;
  }
  notified_ -= std::exchange(slot.notify, false);  // its owner tells its end
  owed_.push_back({operation.id, true, operation.peer});
}

void Engine::chosen(AnyReceive& any, const ReceiveRef& receive) {
  if (Slot* slot = any.id ? find(any.id) : nullptr) slot->operation = receive;
  receive->id = std::exchange(any.id, 0);
}

// Let whoever waits for it look.
void Engine::report(Slot& slot) {
  if (std::exchange(slot.notify, false)) {
    notified_--;
    done_.push_back(slot.id);
    if (!in_progress_) ring_loop();
  }
  wake(slot);
}

// Let the event loop call `progress`.
void Engine::ring_loop() {
  if (!rung_) set(loop_, host_, EPOLLOUT);
  rung_ = true;
}

// Let the thread that waits for it look.
void Engine::wake(Slot& slot) {
  if (!slot.waiting || &slot == serving_) return;
  if (&slot == leader_) {
    kick();
  } else {
    slot.word++;
    awakened_.push_back(&slot);
  }
}

// Wake the leader: the owner's eventfd can always be written to. One of the leader's own might not be had any more.
void Engine::kick() {
  epoll_event event{};
  event.events = EPOLLOUT;
  if (!kicked_) epoll_ctl(epoll_, EPOLL_CTL_ADD, host_, &event);
  kicked_ = true;
}

int Engine::readable() {
  Locked lock(*this);
  if (loop_ >= 0) return loop_;
  loop_ = epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  for (int part : {epoll_, host_}) {
    if (loop_ >= 0 && epoll_ctl(loop_, EPOLL_CTL_ADD, part, &event) == 0) continue;
    int error = errno;
    if (loop_ >= 0) close(loop_);
    loop_ = -1;
    throw std::system_error(error, std::generic_category());
  }
  listen(!leader_);
  if (rung_) set(loop_, host_, EPOLLOUT);
  return loop_;
}

// Let the event loop be woken by what comes on lanes, or not.
void Engine::listen(bool listens) {
  if (listens == listens_ || loop_ < 0) return;
  listens_ = listens;
  set(loop_, epoll_, listens ? uint32_t(EPOLLIN) : 0);
}

// ---- the owner

std::vector<Event> Engine::events() {
  Locked lock(*this);
  quiet(host_);
  std::vector<Event> events;
  events.swap(events_);
  value_bytes_ = 0;
  return events;
}

void Engine::tell(Event event) {
  if (events_.empty()) ring(host_);
  events_.push_back(std::move(event));
}

bool Engine::flush() {
  Locked lock(*this);
  turns_++;
  for (auto& [peer, lane] : lanes_) lane.flush(), watch(lane);
  return std::any_of(lanes_.begin(), lanes_.end(), [](const auto& entry) { return entry.second.backlog(); });
}

bool Engine::drain(int peer) {
  Locked lock(*this);
  turns_++;
  Lane& lane = lanes_.at(peer);
  if (lane.ended()) return false;
  try {
    lane.pump(drained_bytes);
  } catch (const std::bad_alloc&) {
    lost(peer, Loss::protocol, "a message for which there is no memory");
  }
  watch(lane);
  return !lane.ended();
}

void Engine::value(const std::vector<int>& ranks, uint64_t group, Span name, Span value) {
  Locked lock(*this);
  Header header{uint8_t(Kind::value), 0, uint16_t(name.size), 0, group, name.size + value.size};
  for (int rank : ranks) put(rank, header, name, value, nullptr);
}

void Engine::bye(bool gives_up) {
  Locked lock(*this);
  said_bye_ = true;
  Header header{uint8_t(Kind::bye), 0, gives_up, 0, 0, 0};
  for (auto& [peer, lane] : lanes_) put(peer, header, {}, {}, nullptr);
}

bool Engine::linger() {
  Locked lock(*this);
  bool over = true;
  for (auto& [peer, lane] : lanes_) {
    over &= lane.linger();
    if (lane.ended()) epoll_ctl(epoll_, EPOLL_CTL_DEL, lane.fd, nullptr);
  }
  return over;
}

std::map<int, Way> Engine::ways() {
  Locked lock(*this);
  std::map<int, Way> found;
  for (auto& [peer, lane] : lanes_) found[peer] = lane.way();
  return found;
}

std::map<int, std::pair<uint64_t, uint64_t>> Engine::traffic() {
  Locked lock(*this);
  std::map<int, std::pair<uint64_t, uint64_t>> found;
  for (auto& [peer, lane] : lanes_) found[peer] = {lane.sent(), lane.received()};
  return found;
}

void Engine::end(bool orderly) {
  Locked lock(*this);
  // First: from here on nothing is written to a caller's memory.
  for (auto& [peer, lane] : lanes_) {
    if (orderly) {
      lane.stop_reading();
    } else {
      lane.cut();
      epoll_ctl(epoll_, EPOLL_CTL_DEL, lane.fd, nullptr);
    }
  }
  if (!ended_) core_.end();
  ended_ = true;
  for (auto& [channel, route] : routes_) route.launcher.reset();
}

std::map<int, int> Engine::shut(const std::vector<int>& kept) {
  Locked lock(*this);
  std::map<int, int> found;
  for (auto& [peer, lane] : lanes_) {
    if (lane.whole() && std::find(kept.begin(), kept.end(), peer) != kept.end()) {
      found[peer] = lane.fd;
    } else {
      shutdown(lane.fd, SHUT_RDWR);
    }
  }
  return found;
}

void Engine::part_with(const std::vector<int>& descriptors, bool close) {
  Locked lock(*this);
  for (auto& [peer, lane] : lanes_) {
    if (std::find(descriptors.begin(), descriptors.end(), lane.fd) == descriptors.end()) continue;
    close ? lane.abandon() : lane.hand_over();
  }
}

bool Engine::depart(int peer, bool gives_up) {
  Locked lock(*this);
  return core_.depart(peer, gives_up);
}

void Engine::lane_ended(Lane& lane, int error) {
  epoll_ctl(epoll_, EPOLL_CTL_DEL, lane.fd, nullptr);
  tell({Event::Type::lane_ended, lane.peer, error, 0, {}});
}

// ---- what the core asks for; under the lock

void Engine::put(int peer, const Header& header, Span first, Span second, SendOperation* send) {
  Lane& lane = lanes_.at(peer);
  lane.put(header, first, second, send);
  watch(lane);
}

void Engine::disown(int peer, SendOperation& send) { lanes_.at(peer).disown(send); }

bool Engine::receiving(int peer) { return lanes_.at(peer).receiving(); }

void Engine::redirect(int peer, const char* whole, char* own, uint64_t length) {
  lanes_.at(peer).redirect(whole, own, length);
}

void Engine::lost(int peer, Loss why, const std::string& what) {
  Lane& lane = lanes_.at(peer);
  if (why == Loss::protocol && !lane.ended()) {  // nothing more of it is believed
    lane.cut();
    epoll_ctl(epoll_, EPOLL_CTL_DEL, lane.fd, nullptr);
  }
  tell({Event::Type::lost, peer, int(why), 0, what});
}

bool Engine::expects_value(int peer, const Header& header) {
  value_bytes_ += header.nbytes;
  if (header.nbytes <= max_value_bytes && value_bytes_ <= most_value_bytes && header.flags <= header.nbytes) return true;
  lost(peer, Loss::protocol, "a value of " + std::to_string(header.nbytes) + " bytes for the set-up of a group");
  return false;
}

void Engine::on_value(int peer, const Header& header, const Memory& value) {
  tell({Event::Type::value, peer, header.flags, header.key, std::string(value.data(), value.size())});
}

void Engine::on_bye(int peer, bool gives_up) {
  if (farewells_.insert(peer).second) {
    tell({Event::Type::bye, peer, gives_up, 0, {}});
  } else {
    lost(peer, Loss::protocol, "a second farewell");
  }
}

}  // namespace multiworld
