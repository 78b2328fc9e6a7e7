#include "wire/codec.h"

#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "wire/messages.pb.h"

namespace allot::wire {
namespace {

using google::protobuf::util::MessageDifferencer;

Envelope lease_request() {
  Envelope envelope;
  envelope.set_protocol_version(kProtocolVersion);
  envelope.set_number(7);
  envelope.set_sender("w");
  envelope.add_leases(3);
  envelope.add_leases(300);
  envelope.mutable_lease_request()->set_count(2);
  return envelope;
}

// Worked out by hand from the protobuf encoding; docs/wire-protocol.md explains the same bytes.
constexpr std::string_view kLeaseRequestBytes("\x08\x01\x10\x07\x22\x01w\x2a\x03\x03\xac\x02\x6a\x02\x08\x02",
                                              16);

Envelope decoded(std::string_view frame) {
  const auto result = decode(frame);
  if (const auto* failure = std::get_if<DecodeFailure>(&result)) {
    ADD_FAILURE() << failure->message;
    return {};
  }
  return std::get<Envelope>(result);
}

DecodeFailure failure_of(std::string_view frame) {
  const auto result = decode(frame);
  if (std::holds_alternative<Envelope>(result)) {
    ADD_FAILURE() << "decoded: " << std::get<Envelope>(result).ShortDebugString();
    return {};
  }
  return std::get<DecodeFailure>(result);
}

TEST(Codec, AMessageHasExactlyTheDocumentedBytes) {
  EXPECT_EQ(encode(lease_request()), kLeaseRequestBytes);
  EXPECT_TRUE(MessageDifferencer::Equals(decoded(kLeaseRequestBytes), lease_request()));
}

TEST(Codec, EncodingSetsTheProtocolVersion) {
  Envelope envelope = lease_request();
  envelope.clear_protocol_version();
  EXPECT_EQ(decoded(encode(envelope)).protocol_version(), kProtocolVersion);
}

TEST(Codec, AnotherProtocolVersionIsToldApartAndKeepsTheNumber) {
  Envelope envelope = lease_request();
  envelope.set_protocol_version(99);
  const DecodeFailure failure = failure_of(envelope.SerializeAsString());
  EXPECT_EQ(failure.fault, DecodeFault::kOtherVersion);
  EXPECT_EQ(failure.number, 7u);
  EXPECT_NE(failure.message.find("99"), std::string::npos) << failure.message;
}

TEST(Codec, AFrameWithoutAVersionIsNotOneOfAnotherRelease) {
  Envelope envelope = lease_request();
  envelope.clear_protocol_version();
  EXPECT_EQ(failure_of(envelope.SerializeAsString()).fault, DecodeFault::kNoVersion);
  EXPECT_EQ(failure_of("").fault, DecodeFault::kNoVersion);
}

TEST(Codec, AMessageWithoutBodyIsMalformed) {
  Envelope envelope = lease_request();
  envelope.clear_body();
  EXPECT_EQ(failure_of(encode(envelope)).fault, DecodeFault::kMalformed);
}

TEST(Codec, UnknownFieldsAreIgnored) {
  const std::string newer = std::string(kLeaseRequestBytes) + "\xf8\x3e\x05";  // field 1007, a varint
  EXPECT_EQ(decoded(newer).lease_request().count(), 2);
}

TEST(Codec, FramesOverTheLimitAreNeitherSentNorRead) {
  EXPECT_EQ(failure_of(std::string(kMaxFrameBytes + 1, '\0')).fault, DecodeFault::kTooLarge);
  Envelope envelope = lease_request();
  envelope.set_sender(std::string(kMaxFrameBytes, 's'));
  EXPECT_THROW((void)encode(envelope), InvalidArgument);
}

TEST(Codec, EveryTruncationIsAValueAndNeverTheWholeMessage) {
  for (size_t size = 0; size < kLeaseRequestBytes.size(); ++size) {
    EXPECT_NE(failure_of(kLeaseRequestBytes.substr(0, size)).message, "") << size;
  }
}

TEST(Codec, RandomAndFlippedBytesNeverThrow) {
  for (uint32_t seed = 0; seed < 20'000; ++seed) {
    std::mt19937 random(seed);
    std::string frame(kLeaseRequestBytes);
    if (seed % 2 == 0) {
      frame.resize(random() % 64);
      for (char& byte : frame) byte = static_cast<char>(random());
    } else {
      frame[random() % frame.size()] ^= static_cast<char>(1 + random() % 255);
    }
    EXPECT_NO_THROW({
      const auto result = decode(frame);
      if (const auto* envelope = std::get_if<Envelope>(&result)) {
        EXPECT_NE(envelope->body_case(), Envelope::BODY_NOT_SET);
      }
    }) << "seed "
       << seed;
  }
}

TEST(Codec, BodyNameNamesTheField) {
  EXPECT_EQ(body_name(lease_request()), "lease_request");
}

}  // namespace
}  // namespace allot::wire
