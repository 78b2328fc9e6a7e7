#include "wire/codec.h"

#include <fmt/format.h>
#include <google/protobuf/stubs/logging.h>

#include "base/error.h"
#include "wire/messages.pb.h"

namespace allot::wire {
namespace {

// Protocol Buffers writes a line to stderr for each text that is not UTF-8, bypassing the log and its level,
// and a peer may send as many of them as it likes. decode() reports such messages as unreadable anyway.
void silence_protobuf() {
  static const auto previous = google::protobuf::SetLogHandler(nullptr);
  (void)previous;
}

}  // namespace

std::string encode(Envelope envelope) {
  envelope.set_protocol_version(kProtocolVersion);
  std::string frame = envelope.SerializeAsString();
  if (frame.size() > kMaxFrameBytes) {
    throw InvalidArgument(fmt::format("message {} has {} bytes, the limit is {}; send it in parts",
                                      body_name(envelope), frame.size(), kMaxFrameBytes));
  }
  return frame;
}

std::variant<Envelope, DecodeFailure> decode(std::string_view frame) {
  if (frame.size() > kMaxFrameBytes) {
    return DecodeFailure{DecodeFault::kTooLarge,
                         fmt::format("frame of {} bytes, the limit is {}", frame.size(), kMaxFrameBytes)};
  }
  silence_protobuf();
  Envelope envelope;
  if (!envelope.ParseFromArray(frame.data(), static_cast<int>(frame.size()))) {
    return DecodeFailure{DecodeFault::kMalformed,
                         fmt::format("frame of {} bytes is not an allot message", frame.size())};
  }
  if (envelope.protocol_version() != kProtocolVersion) {
    return DecodeFailure{
        envelope.protocol_version() == 0 ? DecodeFault::kNoVersion : DecodeFault::kOtherVersion,
        fmt::format("protocol version {}, this side speaks {}; run the same release of allot on both sides",
                    envelope.protocol_version(), kProtocolVersion),
        envelope.number()};
  }
  if (envelope.body_case() == Envelope::BODY_NOT_SET) {
    return DecodeFailure{DecodeFault::kMalformed,
                         fmt::format("message {} has no body this release knows", envelope.number()),
                         envelope.number()};
  }
  return envelope;
}

std::string body_name(const Envelope& envelope) {
  const auto* field = Envelope::descriptor()->FindFieldByNumber(envelope.body_case());
  return field == nullptr ? "none" : field->name();
}

}  // namespace allot::wire
