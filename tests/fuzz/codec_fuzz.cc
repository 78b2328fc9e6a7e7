// One frame of any bytes. What can be read can be sent again, and is then the same message; what cannot be
// read is refused with words, never with an exception.
#include <string>
#include <string_view>
#include <variant>

#include "tests/fuzz/fuzz_target.h"
#include "wire/codec.h"
#include "wire/messages.pb.h"

namespace allot::fuzz {
namespace {

void read(std::string_view frame) {
  auto first = wire::decode(frame);
  if (const auto* failure = std::get_if<wire::DecodeFailure>(&first)) {
    require(!failure->message.empty(), "a frame that is refused is refused with words");
    return;
  }
  auto& message = std::get<wire::Envelope>(first);
  require(wire::body_name(message) != "none", "a message that was read has a body");
  const std::string sent = wire::encode(std::move(message));
  auto second = wire::decode(sent);
  require(std::holds_alternative<wire::Envelope>(second), "a message that was read can be sent");
  require(wire::encode(std::get<wire::Envelope>(std::move(second))) == sent,
          "a message that was sent is the one that is read");
}

}  // namespace
}  // namespace allot::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  allot::fuzz::read({reinterpret_cast<const char*>(data), size});
  return 0;
}
