#include "reduction.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace multiworld {
namespace {

// So many elements are in the first cache with a result of theirs, which lies apart: `to` may be one of the operands.
constexpr uint64_t block = 1024;

using Function = void (*)(char* to, const std::vector<const char*>& operands, uint64_t count);

// Unsigned and no shorter than an int: sums and products of integers go round.
template <class T, bool = std::is_integral_v<T>>
struct Wide {
  using type = std::common_type_t<unsigned, std::make_unsigned_t<T>>;
};
template <class T>
struct Wide<T, false> {
  using type = T;
};

template <class T, Reducing what>
T combined(T a, T b) {
  using Number = typename Wide<T>::type;
  if constexpr (what == Reducing::sum || what == Reducing::average) return T(Number(a) + Number(b));
  if constexpr (what == Reducing::product) return T(Number(a) * Number(b));
  // What is not a number stays so.
  if constexpr (what == Reducing::minimum) return a < b || a != a ? a : b;
  if constexpr (what == Reducing::maximum) return a > b || a != a ? a : b;
  if constexpr (std::is_integral_v<T>) {
    if constexpr (what == Reducing::bit_and) return a & b;
    if constexpr (what == Reducing::bit_or) return a | b;
    if constexpr (what == Reducing::bit_xor) return a ^ b;
  }
}

template <class T, Reducing what>
void run(char* to, const std::vector<const char*>& operands, uint64_t count) {
  T result[block], next[block];
  for (uint64_t at = 0; at < count; at += block) {
    uint64_t here = std::min(block, count - at), bytes = here * sizeof(T), offset = at * sizeof(T);
    memcpy(result, operands[0] + offset, bytes);
    for (size_t i = 1; i < operands.size(); i++) {
      memcpy(next, operands[i] + offset, bytes);
      for (uint64_t k = 0; k < here; k++) result[k] = combined<T, what>(result[k], next[k]);
    }
    if constexpr (what == Reducing::average) {
      for (uint64_t k = 0; k < here; k++) result[k] /= T(operands.size());
    }
    memcpy(to + offset, result, bytes);
  }
}

template <class T>
Function of_type(Reducing what) {
  switch (what) {
    case Reducing::sum: return run<T, Reducing::sum>;
    case Reducing::product: return run<T, Reducing::product>;
    case Reducing::minimum: return run<T, Reducing::minimum>;
    case Reducing::maximum: return run<T, Reducing::maximum>;
    default: break;
  }
  if constexpr (std::is_integral_v<T>) {
    if (what == Reducing::bit_and) return run<T, Reducing::bit_and>;
    if (what == Reducing::bit_or) return run<T, Reducing::bit_or>;
    if (what == Reducing::bit_xor) return run<T, Reducing::bit_xor>;
  } else if (what == Reducing::average) {
    return run<T, Reducing::average>;
  }
  return nullptr;
}

Function function_of(Reducing what, uint8_t dtype) {
  switch (dtype) {
    case 0: return of_type<uint8_t>(what);
    case 1: return of_type<int8_t>(what);
    case 2: return of_type<int16_t>(what);
    case 3: return of_type<int32_t>(what);
    case 4: return of_type<int64_t>(what);
    case 7: return of_type<float>(what);
    case 8: return of_type<double>(what);
    default: return nullptr;
  }
}

}  // namespace

bool reduces(Reducing what, uint8_t dtype) { return function_of(what, dtype) != nullptr; }

void reduce(Reducing what, uint8_t dtype, char* to, const std::vector<const char*>& operands, uint64_t count) {
  function_of(what, dtype)(to, operands, count);
}

}  // namespace multiworld
