// A unit in the overlay exists twice in the process: the stock copy and this one. Both run their static initialisers,
// stock's first, and c10d::control_plane::registerHandler() throws on the second handler of one name. The overlay's
// handlers have to be in force, since the patch may change them. So the overlay exports this function in place of
// stock's: until the overlay's own initialisers have run, what stock registers waits; of these, only names that the
// overlay did not register are registered then.
//
// The linker step gives the overlay's units another name for the real function, multiworld_register_handler: with
// OWN_REGISTRY, Handlers.cpp is one of these units and defines it; otherwise it is that of stock, REGISTER_HANDLER
// (its mangled name, which depends on the wheel's C++ ABI) in HOME.
#include <dlfcn.h>
#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/control_plane/Handlers.hpp>

using c10d::control_plane::HandlerFunc;

extern "C" __attribute__((visibility("hidden"))) void multiworld_register_handler(
    const std::string& name,
    HandlerFunc handler);

#ifndef OWN_REGISTRY
void multiworld_register_handler(const std::string& name, HandlerFunc handler) {
  using Register = void (*)(const std::string&, HandlerFunc);
  static const auto stock = reinterpret_cast<Register>(dlsym(dlopen(HOME, RTLD_LAZY | RTLD_NOLOAD), REGISTER_HANDLER));
  if (!stock) {
    throw std::runtime_error(HOME " has no registerHandler");
  }
  stock(name, std::move(handler));
}
#endif

namespace {

using Waiting = std::vector<std::pair<std::string, HandlerFunc>>;

Waiting& waiting() {
  static auto* const handlers = new Waiting;
  return *handlers;
}

bool loaded = false;

// Its initialiser is the last one of the overlay: this unit is linked last.
struct Loaded {
  Loaded() {
    loaded = true;
    const auto names = c10d::control_plane::getHandlerNames();
    for (auto& [name, handler] : waiting()) {
      if (std::find(names.begin(), names.end(), name) == names.end()) {
        multiworld_register_handler(name, std::move(handler));
      }
    }
    waiting().clear();
  }
} now;

} // namespace

namespace c10d::control_plane {

void registerHandler(const std::string& name, HandlerFunc handler) {
  if (loaded) {
    multiworld_register_handler(name, std::move(handler));
  } else {
    waiting().emplace_back(name, std::move(handler));
  }
}

} // namespace c10d::control_plane
