// Bytes of one frame <-> Envelope. Bytes from a peer may be anything: every way in which they can be wrong is
// a value, and decoding never throws. The frames themselves are described in docs/wire-protocol.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "wire/messages_fwd.h"

namespace allot::wire {

inline constexpr uint32_t kProtocolVersion = 1;
// Larger frames are refused on both sides. The largest legitimate message, a Grant of many leases,
// is far smaller.
inline constexpr size_t kMaxFrameBytes = size_t{8} << 20;

enum class DecodeFault : uint8_t {
  kTooLarge,      // more than kMaxFrameBytes
  kMalformed,     // not a protobuf Envelope, or one without a body
  kNoVersion,     // an Envelope without a protocol version, such as an empty frame: no release sends one
  kOtherVersion,  // an Envelope of another protocol version
};

struct DecodeFailure {
  DecodeFault fault;
  std::string message;  // one line, with the values found and expected
  uint64_t number = 0;  // Envelope::number where it could still be read, to answer it; 0 otherwise
};

// Serialises `envelope` after setting its protocol version. Throws InvalidArgument when the result is
// larger than kMaxFrameBytes.
[[nodiscard]] std::string encode(Envelope envelope);

[[nodiscard]] std::variant<Envelope, DecodeFailure> decode(std::string_view frame);

// "lease_request", "grant", …: the field name of the body, for log lines.
[[nodiscard]] std::string body_name(const Envelope& envelope);

}  // namespace allot::wire
