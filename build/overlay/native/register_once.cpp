// A unit that is compiled into the overlay exists twice in the process: the stock copy in libtorch_cuda.so and this
// one. Both run their static initialisers, and c10d::control_plane::registerHandler() aborts on the second handler of
// one name. The overlay is linked with `ld --wrap` so that its calls come here: a name that stock registered already is
// left as it is. The stock handlers stay right: they call exported functions (dump_nccl_trace, …), which the
// dynamic loader binds to the overlay. All other initialisers of the unit run as usual.
//
// REGISTER_HANDLER is the mangled name of that function, which depends on the wheel's C++ ABI; the linker step reads it
// from the objects.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/control_plane/Handlers.hpp>

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define REAL JOIN(__real_, REGISTER_HANDLER)
#define WRAP JOIN(__wrap_, REGISTER_HANDLER)

extern "C" void REAL(const std::string& name, c10d::control_plane::HandlerFunc handler);

extern "C" __attribute__((visibility("hidden"))) void WRAP(
    const std::string& name,
    c10d::control_plane::HandlerFunc handler) {
  const auto names = c10d::control_plane::getHandlerNames();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    REAL(name, std::move(handler));
  }
}
