// A core whose wire is a list: frames wait there until a test writes them, and payloads come in pieces.
#pragma once
#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/core.h"

namespace multiworld {

struct Node : Wire, Host {
  struct Frame {
    int peer;
    Header header;
    std::string copied;  // what is not read in place
    Span first, second;  // what is
    std::shared_ptr<Operation> send;
  };
  struct Body {
    Header header;
    Placement placement;
    uint64_t come = 0;
  };

  Node(int rank, const std::vector<int>& peers, uint64_t max_message_bytes)
      : core(rank, peers, max_message_bytes, *this, *this) {}

  void put(int peer, const Header& header, Span first, Span second, SendOperation* send) override {
    if (cut) return;
    Frame frame{peer, header, {}, {}, {}, nullptr};
    if (send) {
      frame.first = first, frame.second = second, frame.send = send->shared_from_this();
    } else {
      frame.copied = std::string(first.data, first.size) + std::string(second.data, second.size);
    }
    log.push_back(frame);
    unwritten[peer].push_back(frame);
  }
  void disown(int peer, SendOperation& send) override {
    for (auto& frame : unwritten[peer]) {
      if (frame.send.get() != &send) continue;
      frame.copied = payload(frame);
      frame.first = frame.second = {};
    }
  }
  bool receiving(int peer) override { return bodies.contains(peer); }
  void redirect(int peer, const char* whole, char* own, uint64_t) override {
    if (!own) {  // the rest is dropped
      bodies.erase(peer);
      return;
    }
    Body& body = bodies.at(peer);
    if (body.come) memcpy(own, whole, body.come);
    body.placement.to = own;
  }
  void settled(Operation&) override {}
  void launch(Operation& operation) override { launches.push_back(operation.shared_from_this()); }
  // The backend has done it.
  void over(size_t place) {
    OperationRef operation = std::move(launches.at(place));
    if (!operation) return;
    std::replace(launches.begin(), launches.end(), operation, OperationRef());  // a collective that went on in parts
    if (operation->type == Operation::Type::receive && !cut) {
      core.landed(std::static_pointer_cast<ReceiveOperation>(operation));
    } else {
      core.over(*operation);
    }
  }
  void dropped(Operation&) override {}
  void chosen(AnyReceive& any, const ReceiveRef& receive) override {
    if (any.id) operations.at(any.id - 1) = receive;
    receive->id = std::exchange(any.id, 0);
  }
  void lost(int, Loss, const std::string& what) override { end(what); }
  bool expects_value(int, const Header&) override { return false; }
  void on_value(int, const Header&, const Memory&) override {}
  void on_bye(int peer, bool gives_up) override {
    bool on_backend = gives_up && std::any_of(launches.begin(), launches.end(), [&](auto& one) {
      return one && (one->peer == peer || one->type == Operation::Type::collective);
    });
    if (on_backend || !core.depart(peer, gives_up)) end("left");
  }

  void end(const std::string& why) {
    if (!failure.empty()) return;
    failure = why;
    cut = true;
    unwritten.clear();
    bodies.clear();
    core.end();
    for (size_t place = 0; place < launches.size(); place++) over(place);
  }

  static std::string payload(const Frame& frame) {
    return frame.copied + std::string(frame.first.data, frame.first.size) + std::string(frame.second.data, frame.second.size);
  }
  // Write the oldest frame to `peer`; false if there is none.
  bool write(int peer, std::string& written) {
    auto& frames = unwritten[peer];
    if (frames.empty()) return false;
    Frame frame = frames.front();
    frames.pop_front();
    written = payload(frame);
    if (frame.send) core.complete(*frame.send);
    return true;
  }
  // A header comes: whether its payload is wanted.
  bool begins(int peer, const Header& header) {
    Body body{header, {}, 0};
    try {
      body.placement = core.on_frame(peer, header);
    } catch (const std::bad_alloc&) {
      core.protocol_error(peer, "no memory");
    }
    if (!body.placement.wanted || cut) return false;
    if (header.nbytes == 0) {
      core.arrived(peer, header, body.placement);
    } else {
      bodies[peer] = body;
    }
    return true;
  }
  // A piece of the payload comes.
  void comes(int peer, const char* data, uint64_t size) {
    if (!bodies.contains(peer)) return;
    Body& body = bodies.at(peer);
    if (size) memcpy(body.placement.to + body.come, data, size);
    body.come += size;
    if (body.come < body.header.nbytes) return;
    Body whole = body;
    bodies.erase(peer);
    core.arrived(peer, whole.header, whole.placement);
  }

  bool cut = false;
  std::string failure;
  std::deque<Frame> log;  // all that was put, in order
  std::map<int, std::deque<Frame>> unwritten;
  std::map<int, Body> bodies;
  std::vector<OperationRef> operations;
  std::vector<OperationRef> launches;  // what the backend is to begin, in order; null once it is over
  Core core;
};

}  // namespace multiworld
