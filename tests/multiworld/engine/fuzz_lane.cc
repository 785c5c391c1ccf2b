// A fuzzer of a lane: bytes become what a rogue peer on the same host writes to the socket, in pieces, with descriptors of rings
// good and bad, while the ring changes; and calls of our own in between.
//
// Built with clang it is libFuzzer's; with -DALONE it draws inputs itself, for a compiler that has none.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "mover/engine.h"

using namespace multiworld;

namespace {

constexpr int ring_seals = 0x1 | 0x2 | 0x4 | 0x10;  // SEAL, SHRINK, GROW, FUTURE_WRITE
constexpr uint64_t longest = 1 << 18;

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

 private:
  const uint8_t *at_, *end_;
};

// Memory as a peer offers it, mapped by us; made once for each kind, as the kernel is slow at that.
struct Offer {
  Offer(uint64_t size, int seals) : descriptor(memfd_create("fuzz", MFD_ALLOW_SEALING | MFD_CLOEXEC)) {
    if (ftruncate(descriptor, off_t(size)) != 0 || fallocate(descriptor, 0, 0, off_t(size)) != 0) abort();
    memory = static_cast<char*>(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0));
    if (memory == MAP_FAILED || fcntl(descriptor, F_ADD_SEALS, seals) != 0) abort();
  }
  int descriptor;
  char* memory;
};

// A caller's memory, exactly as long as its message, freed as soon as the operation has ended or was withdrawn.
struct Loan {
  uint64_t id;
  char* memory;
};

class Game {
 public:
  explicit Game(Input input) : input_(input) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) != 0) abort();
    peer_ = pair[1];
    engine_ = std::make_unique<Engine>(0, std::map<int, int>{{1, pair[0]}}, longest);
  }
  ~Game() {
    engine_->end(input_.byte() & 1);
    engine_->linger();
    for (Loan& loan : loans_) engine_->withdraw(loan.id), free(loan.memory);
    engine_.reset();
    close(peer_);
  }
  void play() {
    for (int step = 0; step < 300 && !input_.empty(); step++) {
      switch (input_.byte() % 8) {
        case 0: send(); break;
        case 1: receive(); break;
        case 2: give_up(); break;
        case 3: frame(); break;
        case 4: lane_frame(); break;
        case 5: garbage(); break;
        case 6: answer(); break;
        case 7: hear(); break;
      }
      engine_->progress();
      engine_->events();
      settle();
      if (input_.byte() % 4) hear();
    }
  }

 private:
  uint64_t size() { return input_.byte() % 4 ? 16 * 1024 + input_.number(2) : input_.byte(); }
  void send() {
    uint64_t bytes = size();
    char* memory = static_cast<char*>(malloc(bytes));
    memset(memory, 1, bytes);
    loans_.push_back({engine_->start({false, false, 1, 7, {mode_fixed, 0, bytes}, memory, {}, true}), memory});
  }
  void receive() {
    uint64_t bytes = size();
    char* memory = static_cast<char*>(malloc(bytes));
    loans_.push_back({engine_->start({true, false, 1, 7, {mode_fixed, 0, bytes}, memory, {}, true}), memory});
  }
  void give_up() {
    if (loans_.empty()) return;
    size_t place = input_.byte() % loans_.size();
    engine_->withdraw(loans_[place].id);
    free(loans_[place].memory);
    loans_.erase(loans_.begin() + long(place));
  }
  void settle() {
    for (size_t i = 0; i < loans_.size();) {
      OperationRef operation = engine_->look(loans_[i].id);
      if (operation && !operation->done()) {
        i++;
        continue;
      }
      engine_->take(loans_[i].id);
      free(loans_[i].memory);
      loans_.erase(loans_.begin() + long(i));
    }
  }

  // What fits: a post, or the payload of one of ours, by the socket or the ring, which then comes in chunks.
  void answer() {
    if (input_.byte() & 1) return say({uint8_t(Kind::post), 0, 0, posts_++, 7, size()});
    if (posted_.empty()) return;
    Header post = posted_.front();
    posted_.erase(posted_.begin());
    uint64_t bytes = post.nbytes;
    bool by_ring = input_.byte() & 1;
    say({uint8_t(uint8_t(Kind::data) | (by_ring ? through_ring : 0)), 0, 0, post.seq, 7, bytes});
    if (!by_ring) return write(std::string(bytes, 'x'));
    left_ = bytes;
  }
  void lane_frame() {
    uint8_t kind = uint8_t(LaneKind::ring) + input_.byte() % 4;
    uint64_t bytes = input_.byte() % 4 ? std::min<uint64_t>(left_, input_.number(3)) : input_.number(8);
    if (kind == uint8_t(LaneKind::ring)) return offer();
    if (kind == uint8_t(LaneKind::chunk)) left_ -= std::min(left_, bytes);
    if (kind == uint8_t(LaneKind::read)) bytes = input_.byte() % 4 ? said_ : bytes, said_ = 0;
    say({kind, 0, uint16_t(input_.byte() & 1), 0, 0, bytes});
  }
  void offer() {
    static Offer offers[] = {{Ring::size, ring_seals}, {Ring::size, 0}, {Ring::size / 2, ring_seals}};
    uint8_t choice = input_.byte() % 6;
    Offer& chosen = offers[choice < 3 ? choice : 0];
    memset(chosen.memory + input_.number(2), input_.byte(), 1024);  // whatever is read of it now
    Header header{uint8_t(LaneKind::ring), 0, 0, 0, 0, input_.byte() % 8 ? uint64_t(Ring::size) : input_.number(4)};
    alignas(cmsghdr) char control[CMSG_SPACE(3 * sizeof(int))] = {};
    iovec part{&header, sizeof header};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    int count = 1 + input_.byte() % 3 / 2;
    if (choice < 5) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(size_t(count) * sizeof(int));
      cmsghdr* passed = CMSG_FIRSTHDR(&message);
      *passed = {CMSG_LEN(size_t(count) * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
      for (int i = 0; i < count; i++) memcpy(CMSG_DATA(passed) + i * sizeof(int), &chosen.descriptor, sizeof(int));
    }
    [[maybe_unused]] ssize_t sent = sendmsg(peer_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  void frame() {
    say({input_.byte(), 0, uint16_t(input_.byte() % 4), uint32_t(input_.byte()), 7, input_.number(input_.byte() % 3)});
  }
  void garbage() {
    std::string bytes;
    for (int count = input_.byte() % 40; count > 0; count--) bytes += char(input_.byte());
    write(bytes);
  }
  // Read what the engine has written, and note its receives, and what is in its ring.
  void hear() {
    char bytes[65536];
    ssize_t got;
    while ((got = recv(peer_, bytes, sizeof bytes, MSG_DONTWAIT)) > 0) heard_.append(bytes, size_t(got));
    while (heard_.size() >= sizeof(Header) + skip_) {
      Header header;
      memcpy(&header, heard_.data() + skip_, sizeof header);
      heard_.erase(0, skip_ + sizeof header);
      skip_ = has_payload(header.kind) ? header.nbytes : 0;
      if (header.kind == uint8_t(Kind::post)) posted_.push_back(header);
      if (header.kind == uint8_t(LaneKind::chunk)) said_ += header.nbytes;
    }
  }
  void say(const Header& header) { write({reinterpret_cast<const char*>(&header), sizeof header}); }
  void write(const std::string& bytes) {
    [[maybe_unused]] ssize_t sent = ::send(peer_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  Input input_;
  int peer_;
  std::unique_ptr<Engine> engine_;
  std::vector<Loan> loans_;
  std::vector<Header> posted_;
  std::string heard_;
  uint64_t left_ = 0, said_ = 0, skip_ = 0;
  uint32_t posts_ = 0;
};

size_t open_descriptors() {
  size_t count = 0;
  for (int number = 0; number < 256; number++) count += fcntl(number, F_GETFD) >= 0;
  return count;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static size_t before = 0;
  Game(Input(data, size)).play();
  size_t now = open_descriptors();
  static int played = 0;
  if (played++ < 1000) before = std::max(before, now);  // those of the offers and of the guard come in time
  if (now > before) fprintf(stderr, "%zu descriptors, %zu before\n", now, before), abort();
  return 0;
}

#ifdef ALONE
int main(int count, char** args) {
  std::mt19937 draw(1);
  for (long runs = count > 1 ? atol(args[1]) : 20'000; runs > 0; runs--) {
    std::vector<uint8_t> bytes(draw() % 600);
    for (uint8_t& byte : bytes) byte = uint8_t(draw());
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  puts("no finding");
}
#endif
