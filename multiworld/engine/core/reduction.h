// Reductions of flat memory, for the dtypes that the compiler has. The operands of an element are taken in their order.
#pragma once
#include <cstdint>
#include <vector>

namespace multiworld {

// The places of `REDUCTIONS` in `matching/collective_plan.py`.
enum class Reducing : uint8_t { sum, average, product, minimum, maximum, bit_and, bit_or, bit_xor };

// Whether there is such a reduction of elements with this code, see `matching/protocol.py`.
bool reduces(Reducing what, uint8_t dtype);

// Reduce `count` elements of each of `operands`, of which there is one at least, into `to`, which may be one of them.
void reduce(Reducing what, uint8_t dtype, char* to, const std::vector<const char*>& operands, uint64_t count);

}  // namespace multiworld
