// A fuzzer of the core: bytes become calls, withdrawals, frames, departures and ends of one member of a world of three.
//
// Callers' memory is exactly as long as the operation says, and freed as soon as the operation has ended or was withdrawn: the
// address sanitizer sees what touches it later. Linked with -Wl,--wrap=aligned_alloc, so that memory can run out.
#include <sanitizer/allocator_interface.h>

#include <cstdio>
#include <set>

#include "node.h"

namespace {

constexpr uint64_t largest_allocation = 1 << 16;
bool starved = false;  // no memory of the core's own can be had now

}  // namespace

extern "C" {
void* __real_aligned_alloc(size_t alignment, size_t size);
void* __wrap_aligned_alloc(size_t alignment, size_t size) {
  return starved || size > largest_allocation ? nullptr : __real_aligned_alloc(alignment, size);
}
}

namespace multiworld {
namespace {

#define CHECK(condition) \
  if (!(condition)) fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition), abort()

constexpr uint64_t longest_message = 256;
constexpr uint64_t longest_key = 2;  // of callers' messages; those of collectives' parts are greater
constexpr int steps_of_input = 400;
constexpr int steps_of_check = 16;  // to look at all operations after each step takes most of the time
constexpr uint64_t bytes_of_step = 16 << 10;  // what one step may make the core take, besides payloads that it wants
const std::string tail = "\x01\x02";

class Input {
 public:
  Input(const uint8_t* at, size_t size) : at_(at), end_(at + size) {}
  bool empty() const { return at_ == end_; }
  uint8_t byte() { return empty() ? 0 : *at_++; }
  uint64_t number(int bytes) {
    uint64_t made = 0;
    while (bytes-- > 0) made = made << 8 | byte();
    return made;
  }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[byte() % values.size()];
  }

 private:
  const uint8_t *at_, *end_;
};

// An operation, and the memory that its caller lends it.
struct Loan {
  OperationRef operation;
  char* memory = nullptr;
  uint64_t size = 0;
  bool settled = false;

  void free_memory() {
    free(memory);
    memory = nullptr;
  }
};

bool uniform(const char* data, uint64_t size) {
  return size == 0 || (data[0] != 0 && memcmp(data, data + 1, size - 1) == 0);
}

// A member whose peers write what they like. What its owner does at once in `Node` may be done later here.
class Member : public Node {
 public:
  Member(bool prompt, bool deferred, bool roomy)
      : Node(0, {1, 2}, longest_message), prompt_(prompt), deferred_(deferred), roomy_(roomy) {}
  ~Member() override {
    for (Loan& loan : loans) loan.free_memory();
  }

  void put(int peer, const Header& header, Span first, Span second, SendOperation* send) override {
    if (cut_.contains(peer)) return;
    Node::put(peer, header, first, second, send);
    if (roomy_ && unwritten[peer].size() == 1) write_out(peer);
  }
  void write_out(int peer) {
    auto& frames = unwritten[peer];
    if (!frames.empty() && frames.front().header.kind == uint8_t(Kind::data)) {
      Header header = frames.front().header;
      std::string whole = payload(frames.front());
      CHECK(whole.size() == header.nbytes);
      bool of_tensor = header.flags == mode_tensor || header.flags == mode_device_tensor;
      CHECK(!of_tensor || whole.ends_with(tail));
      // What is said of a tensor on the device, its length and its shape, is not the caller's memory.
      CHECK(header.flags == mode_device_tensor || uniform(whole.data(), whole.size() - (of_tensor ? tail.size() : 0)));
    }
    std::string written;
    write(peer, written);
  }
  void disown(int peer, SendOperation& send) override {
    if (starved) {  // a lane ends where it cannot copy
      cut_off(peer);
      doomed_ = true;
    }
    Node::disown(peer, send);
  }
  void settled(Operation& operation) override {
    CHECK(operation.done());
    steps_.erase(&operation);
    if (!operation.id) return;
    Loan& loan = loans[operation.id - 1];
    CHECK(!loan.settled);
    loan.settled = true;
    if (prompt_) wake(loan);
  }
  // Nothing is begun on the backend for an operation that has ended.
  void launch(Operation& operation) override {
    CHECK(!operation.done() && operation.launched);
    if (operation.type == Operation::Type::receive) CHECK(static_cast<ReceiveOperation&>(operation).length);
    if (auto step = steps_.find(&operation); step != steps_.end()) {  // all parts are there
      for (auto& memory : step->second.memory) CHECK(uniform(memory.data(), memory.size()));
      steps_.erase(step);
    }
    Node::launch(operation);
  }
  void dropped(Operation& operation) override { CHECK(operation.withdrawn && !operation.done()); }
  void chosen(AnyReceive& any, const ReceiveRef& receive) override {
    if (any.id) loans[any.id - 1].operation = receive;
    receive->id = std::exchange(any.id, 0);
  }
  void lost(int peer, Loss why, const std::string& what) override {
    doomed_ = true;
    if (!deferred_ && !left_) return end(what);
    if (why == Loss::protocol) cut_off(peer);
  }
  void on_bye(int peer, bool gives_up) override {
    if (!deferred_) return Node::on_bye(peer, gives_up);
    byes_.push_back({peer, gives_up});
  }
  bool expects_value(int, const Header& header) override { return header.nbytes <= longest_message; }

  void lend(OperationRef operation, char* memory, uint64_t size) {
    loans.push_back({std::move(operation), memory, size});
    Loan& loan = loans.back();
    loan.operation->id = loans.size();
    loan.settled = loan.operation->done();
    if (loan.settled && (prompt_ || !loan.operation->succeeded())) wake(loan);
  }
  // Its caller goes on.
  void wake(Loan& loan) {
    if (loan.operation->succeeded()) check_message(loan);
    loan.free_memory();
    loan.operation->id = 0;
    woken_.push_back(std::move(loan.operation));
  }
  // Its caller goes on with the stream, before the backend is done.
  void enqueued(size_t place) {
    OperationRef operation = launches.at(place);
    if (operation && !operation->withdrawn && !steps_.contains(operation.get())) core.over(*operation);
  }
  void over_on_backend(size_t place) {
    if (!steps_.contains(launches.at(place).get())) over(place);
  }
  // A step of a collective that all agreed on: a part to and from each other member, in the owner's memory.
  void exchange(size_t place, uint64_t size, char fill) {
    auto whole = std::dynamic_pointer_cast<CollectiveOperation>(launches.at(place));
    if (!whole || whole->done() || steps_.contains(whole.get()) || ended() || starved) return;
    Step& step = steps_[whole.get()] = {whole, {}};
    std::vector<Part> parts;
    for (int peer : whole->ranks) {
      for (bool receives : {true, false}) {
        if (peer == 0) continue;
        auto& memory = step.memory.emplace_back(size, fill);
        parts.push_back({receives, peer, memory.data(), size});
      }
    }
    core.exchange(whole, parts);
  }
  // A message on the device whose caller has left is copied, and kept, once it is there.
  void copy() {
    for (auto& one : woken_) {
      auto* receive = dynamic_cast<ReceiveOperation*>(one.get());
      bool ready = receive && receive->withdrawn && receive->lies_on_device && receive->borrowed && receive->succeeded();
      if (ready && !receive->arriving && !ended()) return core.keep(std::static_pointer_cast<ReceiveOperation>(one));
    }
  }
  void withdraw(Loan& loan) {
    loan.operation->id = 0;
    int peer = std::max(1, loan.operation->peer);
    try {
      core.withdraw(loan.operation);
    } catch (const std::bad_alloc&) {
      lost(peer, Loss::protocol, "no memory");
    }
    loan.free_memory();
    woken_.push_back(std::move(loan.operation));
  }
  // What the owner of the world has put off.
  void catch_up() {
    for (auto [peer, gives_up] : byes_) {
      if (!core.depart(peer, gives_up)) doomed_ = true;
    }
    byes_.clear();
    if (doomed_) end("lost");
  }
  // Leave: nothing is read any more, but what was sent goes out.
  void leave() {
    bodies.clear();
    left_ = true;
    core.end();
  }
  bool hears(int peer) const { return !ended() && !cut_.contains(peer); }
  bool ended() const { return cut || left_; }
  void check() {
    size_t waiting = 0, unfinished = 0;
    for (Loan& loan : loans) {
      if (!loan.operation) continue;
      bool pending = !loan.operation->done();
      CHECK(pending || loan.settled);
      for (int rank : core.awaited(*loan.operation)) CHECK(1 <= rank && rank <= 2);
      waiting += pending && !loan.operation->withdrawn;
      unfinished += pending;
    }
    std::erase_if(woken_, [](const OperationRef& one) { return one.use_count() == 1; });
    for (auto& one : woken_) unfinished += !one->done();
    for (auto& [operation, step] : steps_) unfinished += step.memory.size();
    CHECK(waiting <= core.under_way() && core.under_way() <= unfinished);
    CHECK(core.under_way() || !(core.gives_up() || core.needs(1) || core.needs(2)));
    CHECK(!cut || core.under_way() == 0);
    CHECK(!ended() || bodies.empty());
    if (!cut) return;
    for (auto& [peer, frames] : unwritten) CHECK(frames.empty());
  }

  std::deque<Loan> loans;

 private:
  struct Step {
    CollectiveRef whole;
    std::vector<std::vector<char>> memory;
  };

  void cut_off(int peer) {
    cut_.insert(peer);
    unwritten.erase(peer);
    bodies.erase(peer);
  }
  void check_message(Loan& loan) {
    Operation* operation = loan.operation.get();
    CHECK(operation->type == Operation::Type::send || !loan.memory || uniform(loan.memory, loan.size));
    auto* receive = dynamic_cast<ReceiveOperation*>(operation);
    if (receive && receive->own) CHECK(uniform(receive->to, receive->length));
  }

  const bool prompt_, deferred_, roomy_;  // callers wake at once; the owner acts later; lanes take all at once
  bool doomed_ = false, left_ = false;
  std::set<int> cut_;
  std::vector<std::pair<int, bool>> byes_;
  std::vector<OperationRef> woken_;
  std::map<Operation*, Step> steps_;  // of collectives whose parts are under way
};

// One input, played.
class Game {
 public:
  Game(Input input) : input_(input), begin_(__sanitizer_get_current_allocated_bytes()), member_(mood_ & 1, mood_ & 2, mood_ & 4) {}
  ~Game() { starved = false; }

  void play() {
    int after = 0;  // the end
    for (int i = 0; i < steps_of_input && after < 8 && !input_.empty(); i++) {
      after += member_.ended();
      step();
      hear();
      check_memory();
      if (i % steps_of_check == 0) member_.check();
    }
    if (flag()) member_.end("over");
    member_.check();
  }

 private:
  struct Coming {
    std::string head;
    char fill;
  };

  bool flag() { return input_.byte() & 1; }

  void step() {
    uint8_t where = input_.byte();
    peer_ = 1 + (where & 1);
    starved = where > 240;
    switch (input_.byte() % 32) {
      case 0: case 1: case 2: return send();
      case 3: case 4: case 5: return receive();
      case 6: case 7: return receive_any();
      case 8: return collective();
      case 9: case 10: case 11: return withdraw();
      case 12: return wake();
      case 13: case 14: return member_.write_out(peer_);
      case 15: case 16: return ask();
      case 17: case 18: return fingerprint();
      case 19: return over();
      case 20: return rare();
      case 21: case 22: case 23: case 24: return piece();
      default: return reply();
    }
  }

  // calls

  uint64_t length() { return input_.one_of<uint64_t>({8, 8, 8, 0, 1, 64, 256, 300}); }
  uint64_t key() { return input_.one_of<uint64_t>({1, 1, 1, 2}); }
  uint8_t dtype() { return input_.one_of<uint8_t>({7, 7, 7, 3}); }
  uint16_t mode() { return input_.one_of<uint16_t>({0, 0, 0, 1, 2, 3, 3}); }
  char* memory(uint64_t size, char fill) {
    char* made = static_cast<char*>(malloc(size));
    if (size) memset(made, fill, size);
    return made;
  }
  char next_fill() { return fill_ = fill_ == 127 ? 1 : char(fill_ + 1); }

  void send() {
    uint64_t size = length();
    uint16_t mode = this->mode();
    if (mode == mode_device || (mode == mode_tensor && flag())) return send_on_device(mode, size);
    std::string shape = mode == mode_tensor ? tail : "";
    char* from = memory(size, next_fill());
    try {
      member_.lend(member_.core.send(peer_, key(), {mode, dtype(), size + shape.size()}, {from, size}, shape, mode != mode_object),
                   from, size);
    } catch (const std::bad_alloc&) {
      free(from);
    }
  }
  void send_on_device(uint16_t mode, uint64_t size) {
    std::string said(reinterpret_cast<char*>(&size), mode == mode_tensor ? sizeof size : 0);
    if (mode == mode_tensor) said += tail;
    member_.lend(member_.core.send(peer_, key(), {mode, dtype(), size}, {}, said, false, true), nullptr, 0);
  }
  void receive() {
    uint16_t mode = this->mode();
    uint64_t size = is_exact(mode) ? length() : longest_message;
    char* to = mode == mode_fixed ? memory(size, 0) : nullptr;
    bool on_device = mode == mode_device || (mode == mode_tensor && flag());
    auto operation = member_.core.receive(peer_, key(), {mode, dtype(), size}, to, to || mode == mode_device, on_device);
    member_.lend(operation, to, to ? size : 0);
  }
  void receive_any() {
    uint64_t size = length();
    bool on_device = input_.byte() % 4 == 0;
    char* to = on_device ? nullptr : memory(size, 0);
    auto peers = input_.one_of<std::vector<int>>({{1, 2}, {1}, {2, 1}});
    Signature signature{uint16_t(on_device ? mode_device : mode_fixed), dtype(), size};
    member_.lend(member_.core.receive_any(peers, key(), signature, to, true, on_device), to, to ? size : 0);
  }
  void collective() {
    int group = input_.byte() % 3;
    std::vector<std::vector<int>> ranks = {{0, 1, 2}, {0, 1}, {0, 2}};
    uint64_t size = ranks[group].size(), each = input_.byte() % 32;
    char* from = memory(each, next_fill());
    std::vector<Span> outgoing(flag() ? size : 0, Span{from, each});
    member_.lend(member_.core.collective(group, ranks[group], said(size), flag(), outgoing), nullptr, 0);
    free(from);
  }
  std::string said(uint64_t size) {
    return std::string(input_.one_of<uint64_t>({24, 24 + 16 * size}), input_.one_of({'f', 'f', 'f', 'f', 'f', 'f', 'f', 'g'}));
  }
  Loan* pick() {
    size_t count = std::min<size_t>(member_.loans.size(), 8);
    if (!count) return nullptr;
    Loan& loan = member_.loans[member_.loans.size() - 1 - input_.byte() % count];
    return loan.operation ? &loan : nullptr;
  }
  // What has failed has nothing that could be given up.
  void withdraw() {
    Loan* loan = pick();
    if (loan && (!loan->operation->done() || loan->operation->succeeded())) member_.withdraw(*loan);
  }
  void wake() {
    for (Loan& loan : member_.loans) {
      if (loan.operation && loan.operation->done()) member_.wake(loan);
    }
  }
  void over() {
    size_t count = member_.launches.size();
    if (!count) return;
    size_t place = count - 1 - input_.byte() % std::min<size_t>(count, 8);
    switch (input_.byte() % 4) {
      case 0: return member_.enqueued(place);
      case 1: return member_.copy();
      case 2: return member_.exchange(place, length(), next_fill());
      default: return member_.over_on_backend(place);
    }
  }
  // frames

  void rare() {
    switch (input_.byte() % 16) {
      case 0: return member_.end("ended");
      case 8: return member_.leave();
      case 1: case 2: return begins({uint8_t(Kind::bye), 0, flag(), 0, 0, 0});
      case 3: case 4: return member_.catch_up();
      case 5: case 6: case 7: return frame();
    }
  }
  // What a peer begins.
  void ask() {
    uint64_t key = this->key();
    switch (input_.byte() % 4) {
      case 0: return begins({uint8_t(Kind::post), dtype(), mode(), asked_++, key, length()});
      case 1: return begins({uint8_t(Kind::post), 0, mode_fixed, asked_++, part_.key, part_.nbytes});
      case 2: return begins({uint8_t(Kind::any), 0, 0, asked_++, key, 0});
      case 3: return begins({uint8_t(Kind::cancel), 0, 0, asked_ - input_.byte() % 4, key, 0});
    }
  }
  // What a peer says to one of the oldest frames of ours that it has not answered.
  void reply() {
    auto& said = said_[peer_];
    if (said.empty()) return;
    auto place = said.begin() + input_.byte() % std::min<size_t>(said.size(), 4);
    Header header = *place;
    said.erase(place);
    bool yes = input_.byte() % 4;
    switch (Kind(header.kind)) {
      case Kind::post: return yes ? data(header) : begins({uint8_t(Kind::reject), 3, 0, header.seq, header.key, 8});
      case Kind::cancel: return begins({uint8_t(Kind::cancelled), 0, 0, header.seq, header.key, 0});
      case Kind::any: return begins({uint8_t(Kind::offer), 0, 0, header.seq, header.key, 0});
      default: break;
    }
    begins({uint8_t(yes ? Kind::take : Kind::any_done), 0, 0, header.seq, header.key, 0});
    if (yes) begins({uint8_t(Kind::post), dtype(), 0, asked_++, header.key, length()});
  }
  void data(Header header) {
    if (!posts_[peer_].contains(header.seq)) return;
    header.kind = uint8_t(Kind::data);
    if (header.flags == mode_device) header.nbytes = 0;
    if (header.flags == mode_tensor && flag()) return tensor_on_device(header);
    if (!is_exact(header.flags)) header.nbytes = std::min<uint64_t>(header.nbytes, length());
    begins(header, {"", next_fill()});
  }
  void tensor_on_device(Header header) {
    uint64_t size = length();
    header.flags = mode_device_tensor;
    header.nbytes = sizeof size + tail.size();
    begins(header, {std::string(reinterpret_cast<char*>(&size), sizeof size) + tail, next_fill()});
  }
  void fingerprint() {
    uint64_t group = input_.byte() % 3;
    uint32_t& next = collectives_[{peer_, group}];
    std::string said = this->said(group ? 2 : 3);
    begins({uint8_t(Kind::fingerprint), 0, uint16_t(said.size()), next++, group, said.size() + length()}, {said, next_fill()});
  }
  // Whatever may come.
  void frame() {
    Header header{};
    header.kind = input_.byte() % 14;
    header.dtype = dtype();
    header.flags = input_.one_of<uint16_t>({0, 0, 1, 2, 24, 3, 4});
    header.key = key();
    header.seq = number(Kind(header.kind));
    uint8_t size = input_.byte() % 9;
    header.nbytes = size == 8 ? input_.number(8) : input_.one_of<uint64_t>({8, 8, 0, 24, 64, 256, 300, 70000});
    if (size == 7) header.flags = uint16_t(input_.number(2));
    begins(header, {"", next_fill()});
  }
  // Of one of our last receives, or one that the peer makes up.
  uint32_t number(Kind kind) {
    uint8_t back = input_.byte() % 4;
    switch (kind) {
      case Kind::data: case Kind::reject: case Kind::cancelled: return last_[0] - back;
      case Kind::offer: return last_[1] - back;
      default: return back;
    }
  }
  void begins(const Header& header, Coming coming = {}) {
    if (!member_.hears(peer_) || member_.bodies.contains(peer_)) return;
    bool asked = asked_for(header);
    coming_[peer_] = coming;
    bool wanted = member_.begins(peer_, header);
    if (wanted) allowed_ += header.nbytes;
    if (header.kind == uint8_t(Kind::data) && (header.flags == mode_device || header.flags == mode_device_tensor)) {
      CHECK(asked || !wanted);
    } else if (header.kind == uint8_t(Kind::data)) {
      CHECK(wanted ? asked : !asked || starved || !member_.hears(peer_));
    } else {
      CHECK(!wanted || has_payload(header.kind));
    }
  }
  // Whether a post of ours waits for that payload; its number is used up.
  bool asked_for(const Header& header) {
    bool ends = header.kind == uint8_t(Kind::data) || header.kind == uint8_t(Kind::reject) || header.kind == uint8_t(Kind::cancelled);
    auto& posts = posts_[peer_];
    auto found = posts.find(header.seq);
    if (!ends || found == posts.end()) return false;
    Header post = found->second;
    posts.erase(found);
    if (post.flags == mode_device && header.flags != mode_device) return false;
    if (header.flags == mode_device || header.flags == mode_device_tensor) return true;
    return post.flags == mode_fixed ? header.nbytes == post.nbytes : header.nbytes <= post.nbytes;
  }
  void piece() {
    if (!member_.bodies.contains(peer_)) return;
    auto& body = member_.bodies.at(peer_);
    uint64_t rest = body.header.nbytes - body.come;
    uint64_t count = flag() ? rest : 1 + input_.byte() % rest;
    Coming& coming = coming_[peer_];
    std::string piece(count, coming.fill);
    for (uint64_t i = 0; i < count && body.come + i < coming.head.size(); i++) piece[i] = coming.head[body.come + i];
    member_.comes(peer_, piece.data(), piece.size());
  }
  // Note what the core has put.
  void hear() {
    for (; !member_.log.empty(); member_.log.pop_front()) {
      int peer = member_.log.front().peer;
      Header header = member_.log.front().header;
      Kind kind = Kind(header.kind);
      if (kind == Kind::post) posts_[peer][header.seq] = header;
      if (kind == Kind::post) last_[0] = header.seq;
      if (kind == Kind::post && header.key > longest_key) part_ = header;
      if (kind == Kind::any) last_[1] = header.seq;
      bool asks = kind == Kind::post || kind == Kind::cancel || kind == Kind::any || kind == Kind::offer;
      if (asks) said_[peer].push_back(header);
    }
  }
  void check_memory() {
    allowed_ += bytes_of_step;
    CHECK(__sanitizer_get_current_allocated_bytes() < begin_ + allowed_);
  }

  Input input_;
  const uint8_t mood_ = input_.byte();
  const size_t begin_;
  Member member_;
  int peer_ = 1;
  char fill_ = 0;
  uint64_t allowed_ = 0;
  Header part_{};  // the last post of a part of a collective
  uint32_t last_[2] = {0, 0};  // numbers of the last post, and of the last receive from any source
  std::map<int, std::map<uint32_t, Header>> posts_;
  std::map<int, std::deque<Header>> said_;  // by the core, and wants an answer
  std::map<std::pair<int, uint64_t>, uint32_t> collectives_;
  std::map<int, Coming> coming_;
  uint32_t asked_ = 1;
};

}  // namespace
}  // namespace multiworld

// Short stacks and little memory held back: speed.
extern "C" const char* __asan_default_options() { return "quarantine_size_mb=16:malloc_context_size=1"; }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  multiworld::Game(multiworld::Input(data, size)).play();
  return 0;
}
