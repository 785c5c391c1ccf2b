// The engine of one generation of one world: its core, its lanes, and the threads that move them.
//
// Who waits moves the data: of the threads that wait one leads, in epoll, and the others sleep until their operation is done
// or the lead is theirs. An event loop moves it with `progress` when `readable()` is. Where threads wait the loop is left in
// peace: it would only contend with them. No call blocks but `wait`.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "core/core.h"
#include "lanes/lane.h"
#include "launch/launcher.h"

struct epoll_event;
struct pollfd;

namespace multiworld {

// What the owner of the world has to deal with.
struct Event {
  // `owed`: there is something in `owed`, and who moved the data does not look there.
  enum class Type : uint8_t { lost, lane_ended, bye, value, owed };
  Type type;
  int peer = -1;
  int number = 0;  // the error of a lane; 1 for a bye that gives up
  uint64_t id = 0;
  std::string text;
};

// What the owner has to begin on the backend, in this order; or, where nobody waits for it, to look at: it has ended.
struct Owed {
  uint64_t id = 0;
  bool begins = false;
  int peer = -1;
};

// A message that is to be sent or received.
struct Message {
  bool receives = false;
  bool on_device = false;  // where its memory is the owner's, except for `tail`
  int peer = -1;
  uint64_t key = 0;
  Signature signature;
  char* data = nullptr;   // null for memory of the engine's own, and on the device for what the owner has to begin
  std::string tail;       // what is sent after it
  bool borrowed = true;   // `data` is the caller's memory until the end, else it is copied at once
  void* after = nullptr;  // event before which `data` on the device is not to be used
  bool streamed = false;  // a plain one: its caller waits until it is in the stream
};

// A message on the device that was launched without the owner, whose end it is to hear now: as a report of the launcher, unless
// it was `dropped` there.
struct Flown {
  uint64_t id;
  int peer;
  bool dropped;
};

// What an operation waits for now: world ranks, and whether a send is matched with its receive.
struct Awaited {
  std::vector<int> ranks;
  bool matched = false;
};

class Engine final : public std::enable_shared_from_this<Engine>, private Wire, private Host {
 public:
  // Takes over the descriptors of the lanes, by peer.
  Engine(int rank, const std::map<int, int>& lanes, uint64_t max_message_bytes);
  ~Engine();

  // Before anything else: the connections to these peers were in use before, see `Lane::begin_at`.
  void begin_at(const std::vector<int>& peers, const std::string& mark);

  // Each returns a number for the calls below.
  uint64_t start(const Message& message);
  // Start several; what goes to one peer goes out together.
  std::vector<uint64_t> start(const std::vector<Message>& messages);
  uint64_t receive_any(const std::vector<int>& peers, uint64_t key, Signature signature, char* to, bool on_device,
                       void* after = nullptr);
  uint64_t collective(uint64_t group, std::vector<int> ranks, std::string fingerprint, bool launches,
                      const std::vector<Span>& outgoing);

  // Move parts of a collective that was in `owed`; it is there again when all of them are done.
  void exchange(uint64_t id, const std::vector<Part>& parts);

  // Start a message whose caller goes on with it in compiled code. 0 if nothing is started: any more, or on the device where the
  // owner would have to begin it.
  uint64_t start_plain(const Message& message);

  // Move the data until the operation is done: true. False at `until`, in nanoseconds of the monotonic clock; as soon as there
  // is something in `owed`; or when it is time to look for signals, and then `interrupted` is set.
  bool wait(uint64_t id, int64_t until, bool* interrupted);
  // The operation; null if there is none of that number. What it holds may be read once it is done. With `outcome`, also
  // that: what is pending is owed where there is something in `owed`, what is done may be kept.
  OperationRef look(uint64_t id, Outcome* outcome = nullptr);
  // Let go of one that is done. Until then it can be withdrawn: a message that came is kept for the next receive.
  void take(uint64_t id);
  // Give it up. On return the caller's memory is the caller's, and the number is let go of; or it `goes_on`: true. With `flown`,
  // the owner hears the end of what was launched without it.
  bool withdraw(uint64_t id, std::vector<Flown>* flown = nullptr);
  Awaited awaited(uint64_t id);
  // Whether an operation cannot end without that peer.
  bool needs(int peer);
  // Whether a message of the peer lies ready.
  bool keeps(int peer, uint64_t key);
  // Take what is owed, for whoever has moved data: each is begun before the next is taken by another.
  std::vector<Owed> owed();
  // See `Core`: the backend is done with it; the payload is on the device; the copy of a message without a waiter is made.
  void over(uint64_t id);
  void landed(uint64_t id);
  void keep(uint64_t id);
  // The number of the message whose payload lies on the device for a receive; 0 if it came on the lane.
  uint64_t on_device(const ReceiveRef& receive);

  // Launch messages to or from a peer on the device without the owner, as soon as they are matched and what was in `owed` before
  // them has begun. Their ends need no owner either.
  void connect(int peer, bool receives, std::shared_ptr<Launcher> launcher);
  // A message that was in `owed` has been given to its launcher.
  void begun(uint64_t id);
  // Let the stream of a caller wait for the end of one that is in the stream; an error in words.
  std::string join(uint64_t id, void* stream);
  // Its caller goes on with the stream, and its end is in `owed`; true if it is done already.
  bool leave(uint64_t id);
  // Let the owner hear the end of one that was launched without it, or for 0 of all; what has ended well is done. One that is not
  // launched yet is the owner's to begin.
  std::vector<Flown> adopt(uint64_t id);

  // For an event loop: report the end of `id` in `progress`. False if it is done already, or by what has come by now.
  bool notify(uint64_t id);
  // As `notify`, of what was started for an event loop; its outcome. `loop` is as for `attend`; or -1; or `for_thread`, which
  // calls `wait`.
  static constexpr int for_thread = -2;
  Outcome begin(uint64_t id, int loop);
  // Start a collective whose payloads travel with the fingerprints, for `begin`. 0 if nothing is started any more.
  uint64_t start_plain(uint64_t group, std::vector<int> ranks, std::string fingerprint, const std::vector<Span>& outgoing);
  // Wait for a moment, for an event loop that has nothing else to do, until `id` is done or `loop`, its descriptor, readable.
  void attend(uint64_t id, int loop);
  // Move what is ready; the operations that are done since, and 0 if something is owed.
  std::vector<uint64_t> progress();
  // Readable when `progress` has something to do: threads have completed what it awaits, or something came on lanes, and
  // no thread is soon there to see to that. Made when it is first asked for.
  int readable();

  // For the owner.
  std::vector<Event> events();
  int eventful() const { return host_; }
  // Write what the connections take, for who moves data step by step; whether something is left.
  bool flush();
  // Read all that has come from a peer; false once its connection has ended.
  bool drain(int peer);
  // Send a value for the set-up of a backend.
  void value(const std::vector<int>& ranks, uint64_t group, Span name, Span value);
  void bye(bool gives_up);
  // Break the world: nothing is read or written any more, all operations end. Orderly: what was sent still goes out.
  void end(bool orderly);
  // After an end: close the connections for the peers, except for those of `kept`, as far as they were there at the end: these
  // are held until `part_with`. What the peer has sent on them may be cut anywhere.
  std::map<int, int> shut(const std::vector<int>& kept);
  // Close the connections of these descriptors, which are held, or leave them to the caller.
  void part_with(const std::vector<int>& descriptors, bool close);
  // After an orderly end: write, say that nothing follows, and tell whether the peers' machines have all of it.
  bool linger();
  bool depart(int peer, bool gives_up);
  // Whether our own end leaves something undone that others take part in.
  bool gives_up();
  // How large payloads go to each peer.
  std::map<int, Way> ways();
  // Bytes sent and received by peer.
  std::map<int, std::pair<uint64_t, uint64_t>> traffic();
  // In a forked child nothing else may be called: another thread may have been at work. The descriptors are closed there, so
  // that peers learn of the parent's end by the end of its connections.
  bool forked() const { return forked_; }

  // For the guard: move the data of all engines that owe something and that nobody else moves, and let loops listen to lanes
  // again where threads no longer do. Adds to `watched` what tells that these can go on; whether any engine is to be looked
  // at again.
  static bool pay_all(std::vector<::pollfd>& watched);

 private:
  // The way of messages to or from a peer on the device.
  struct Route {
    std::shared_ptr<Launcher> launcher;
    size_t owed = 0;  // messages that the owner has to begin: others follow them
  };
  struct Slot {
    OperationRef operation;
    uint64_t id = 0;
    std::atomic<uint32_t> word{0};  // changes when its thread has to look
    bool waiting = false, notify = false;
    // Of a message on the device: whether its caller waits for the stream alone, it is there, the caller has left with it; and
    // whether its owner is to begin it, whatever can be launched without.
    bool streamed = false, enqueued = false, left = false, begun_by_owner = false;
    bool done() const { return operation->done() || (streamed && enqueued); }
    Route* owed = nullptr;               // where it is to begin
    std::shared_ptr<Launcher> launcher;  // that tells its end
  };
  class Locked;

  OperationRef made(const Message& message);
  bool wait(Locked& lock, uint64_t id, int64_t until, bool* interrupted, int loop = -1);
  uint64_t take_up(const OperationRef& operation);
  Slot* find(uint64_t id);
  void let_go(Slot& slot);
  bool fly(MessageOperation& message, Slot& slot, Route& route);
  void flown(uint64_t id);
  void enqueued(uint64_t id);
  void land(Slot& slot);
  void adopt(Slot& slot, std::vector<Flown>& flown);
  static Outcome told(const Slot& slot);
  void has_begun(Slot& slot);
  void wake(Slot& slot);
  void report(Slot& slot);
  void ring_loop();
  void peek();
  void be_told(Slot& slot);
  bool attend(Locked& lock, uint64_t id, int loop);
  void lead(Locked& lock, Slot& slot, int64_t patience_ns, bool* interrupted, int loop);
  int look_before_sleep(epoll_event* events);
  void follow(Locked& lock, Slot& slot, int64_t patience_ns, bool* interrupted);
  void pass_the_lead();
  void be_guarded();
  void listen(bool listens);
  void serve(const ::epoll_event* events, int count);
  void watch(Lane& lane);
  bool pay(bool* ours);
  void kick();
  void close_all();
  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();
  void tell(Event event);
  void lane_ended(Lane& lane, int error);

  void put(int peer, const Header& header, Span first, Span second, SendOperation* send) override;
  void disown(int peer, SendOperation& send) override;
  bool receiving(int peer) override;
  void redirect(int peer, const char* whole, char* own, uint64_t length) override;
  void settled(Operation& operation) override;
  void launch(Operation& operation) override;
  void dropped(Operation& operation) override;
  void chosen(AnyReceive& any, const ReceiveRef& receive) override;
  void lost(int peer, Loss why, const std::string& what) override;
  bool expects_value(int peer, const Header& header) override;
  void on_value(int peer, const Header& header, const Memory& value) override;
  void on_bye(int peer, bool gives_up) override;

  std::mutex mutex_;
  Core core_;
  std::map<int, Lane> lanes_;
  std::deque<Slot> slots_;
  std::vector<uint32_t> free_;
  Slot* leader_ = nullptr;   // of the thread that is in epoll
  Slot* serving_ = nullptr;  // of the one that moves data now: it need not be woken
  std::deque<Slot*> followers_;
  std::vector<Slot*> awakened_;  // once the lock is free: who is woken needs it
  std::vector<uint64_t> done_;   // for the event loop
  std::vector<Owed> owed_;
  std::vector<Owed> over_;  // left by their callers, and done: nobody needs to look at once
  size_t left_ = 0;         // and those that are not
  std::map<std::pair<int, bool>, Route> routes_;  // by peer, and whether it sends
  std::vector<Event> events_;
  uint64_t value_bytes_ = 0;  // in these
  std::set<int> farewells_;   // of whom there was one
  int epoll_ = -1;
  int loop_ = -1;  // wakes the event loop: an epoll of the two others
  int host_ = -1;  // wakes the owner
  bool in_progress_ = false, kicked_ = false, rung_ = false;
  int peeks_ = 0;          // since `progress`
  int64_t attended_until_ = 0;  // since `progress`; 0 before
  int prompt_ = 0;         // short waits of leaders, one after the other; the leader's alone
  bool listens_ = false;   // the event loop to what comes on lanes
  uint64_t notified_ = 0;  // operations that it awaits
  // Something for a peer is not written, or the loop does not listen; false only once the guard has seen that.
  std::atomic<bool> guarded_{false};
  uint64_t turns_ = 0, seen_turns_ = 0;  // in which others than the guard moved the data; and as the guard last saw them
  bool ended_ = false, said_bye_ = false;
  std::atomic<bool> forked_{false};
};

}  // namespace multiworld
