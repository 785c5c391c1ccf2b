// The frames on a lane: a header of 24 bytes, little-endian, then a payload. Codes of dtypes are `matching/protocol.py`'s.
#pragma once
#include <bit>
#include <cstdint>

namespace multiworld {

enum class Kind : uint8_t {
  post = 1,
  data = 2,
  reject = 3,
  cancel = 4,
  cancelled = 5,
  any = 6,
  offer = 7,
  any_done = 8,
  fingerprint = 9,
  value = 10,
  bye = 11,
  take = 12,
};

// The ways to agree on the length of a message.
enum Mode : uint16_t {
  mode_fixed = 0,          // both sides name dtype and length
  mode_tensor = 1,         // the payload ends with its shape
  mode_object = 2,         // the payload is a pickle
  mode_device = 3,         // as mode_fixed, and the payload goes from device to device
  mode_device_tensor = 4,  // of data alone: its length and shape come on the lane, the payload from device to device
};

// Whether both sides name the length.
inline bool is_exact(uint16_t mode) { return mode == mode_fixed || mode == mode_device; }

struct Header {
  uint8_t kind;
  uint8_t dtype;
  uint16_t flags;  // the mode; for fingerprints and values the bytes before the payload proper; for bye whether it gives up
  uint32_t seq;
  uint64_t key;  // group and tag
  uint64_t nbytes;
};
static_assert(sizeof(Header) == 24 && std::endian::native == std::endian::little);

// Only the payloads of these follow their header; in other frames the length is only said.
inline bool has_payload(uint8_t kind) {
  return kind == uint8_t(Kind::data) || kind == uint8_t(Kind::fingerprint) || kind == uint8_t(Kind::value);
}

}  // namespace multiworld
