#include "model/gguf/gguf_file.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "tests/model/files/test_directory.h"
#include "tests/model/gguf/gguf_bytes.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// A file with two tensors of 24 and 34 bytes.
GgufBytes good_file() {
  GgufBytes file;
  file.set("general.architecture", "llama").set("a.count", uint32_t{7});
  file.tensor(floats("matrix", {2, 3}, {0, 1, 2, 3, 4, 5}));
  file.tensor({.name = "quantised", .shape = {1, 32}, .type = 8, .bytes = std::string(34, '\x01')});
  return file;
}

class GgufFileTest : public testing::Test {
 protected:
  GgufFile open(const std::string& bytes) const { return GgufFile(directory_.write("x.gguf", bytes)); }
  GgufFile open(const GgufBytes& file) const { return open(file.file()); }

  template <class Expected = CorruptFile>
  std::string message_for(const std::string& bytes) const {
    const auto path = directory_.write("x.gguf", bytes);
    const std::string message = message_of<Expected>([&] { GgufFile file(path); });
    EXPECT_THAT(message, Names(path));
    EXPECT_THAT(message, Not(HasSubstr("\n")));
    return message;
  }
  template <class Expected = CorruptFile>
  std::string message_for(const GgufBytes& file) const {
    return message_for<Expected>(file.file());
  }

  TestDirectory directory_;
};

TEST_F(GgufFileTest, GivesTensorsInFileOrderWithTheirShapesOutermostFirst) {
  for (const uint32_t version : {2u, 3u}) {
    GgufBytes bytes = good_file();
    bytes.version = version;
    GgufFile first = open(bytes);
    const GgufFile file = std::move(first);
    EXPECT_EQ(file.version(), version);
    ASSERT_EQ(file.tensors().size(), 2u);
    EXPECT_EQ(file.tensors()[0].name, "matrix");
    EXPECT_THAT(file.tensors()[0].shape, ElementsAre(2, 3));
    EXPECT_EQ(file.tensors()[0].layout->type, BlockType::kF32);
    float last = 0;
    std::memcpy(&last, file.tensors()[0].bytes.data() + 20, sizeof last);
    EXPECT_EQ(last, 5);
    EXPECT_EQ(file.find_tensor("quantised")->bytes.size(), 34u);
    EXPECT_EQ(file.find_tensor("quantised")->bytes[33], std::byte{1});
    EXPECT_EQ(file.find_tensor("other"), nullptr);
  }
}

TEST_F(GgufFileTest, ReadsValuesOfEveryType) {
  GgufBytes bytes;
  bytes.set("uint8", uint8_t{200}).set("int8", int8_t{-3}).set("uint16", uint16_t{60000});
  bytes.set("int16", int16_t{-300}).set("uint32", uint32_t{4000000000}).set("int32", int32_t{-70000});
  bytes.set("uint64", uint64_t{1} << 40).set("int64", int64_t{-1} * (int64_t{1} << 40));
  bytes.set("float32", 1.5f).set("float64", -2.25).set("yes", true).set("no", false);
  bytes.set("text", "häuser").set("texts", std::vector<std::string>{"a", "", "Ġb"});
  bytes.set("numbers", std::vector<int32_t>{3, -1}).set("none", std::vector<uint8_t>{});
  const GgufFile file = open(bytes);
  constexpr int64_t kLeast = INT64_MIN, kMost = INT64_MAX;
  EXPECT_EQ(file.at("uint8").integer(kLeast, kMost), 200);
  EXPECT_EQ(file.at("int8").integer(kLeast, kMost), -3);
  EXPECT_EQ(file.at("uint16").integer(kLeast, kMost), 60000);
  EXPECT_EQ(file.at("int16").integer(kLeast, kMost), -300);
  EXPECT_EQ(file.at("uint32").integer(kLeast, kMost), 4000000000);
  EXPECT_EQ(file.at("int32").integer(kLeast, kMost), -70000);
  EXPECT_EQ(file.at("uint64").integer(kLeast, kMost), int64_t{1} << 40);
  EXPECT_EQ(file.at("int64").integer(kLeast, kMost), int64_t{-1} * (int64_t{1} << 40));
  EXPECT_EQ(file.at("float32").real(0, 2), 1.5);
  EXPECT_EQ(file.at("float64").real(-3, 2), -2.25);
  EXPECT_TRUE(file.at("yes").boolean());
  EXPECT_FALSE(file.at("no").boolean());
  EXPECT_EQ(file.at("text").text(), "häuser");
  EXPECT_THAT(file.at("texts").texts(), ElementsAre("a", "", "Ġb"));
  EXPECT_THAT(file.at("numbers").integers(-1, 3), ElementsAre(3, -1));
  EXPECT_EQ(file.at("none").elements(), 0u);
  EXPECT_FALSE(file.find("other"));
}

TEST_F(GgufFileTest, AValueOfAnotherTypeOrRangeIsNamedWithItsKey) {
  GgufBytes bytes;
  bytes.set("count", uint32_t{7}).set("huge", UINT64_MAX).set("real", 0.5f).set("word", "x\n");
  bytes.set("texts", std::vector<std::string>{"a", "\xff"}).set("numbers", std::vector<int32_t>{1, 9});
  const GgufFile file = open(bytes);
  const auto message = [](const auto& read) { return message_of<CorruptFile>(read); };
  EXPECT_THAT(message([&] { (void)file.at("count").integer(8, 9); }), Names("count", 7, 8, 9));
  EXPECT_THAT(message([&] { (void)file.at("count").text(); }), Names("count", 7, "string"));
  EXPECT_THAT(message([&] { (void)file.at("huge").integer(0, INT64_MAX); }), Names("huge", UINT64_MAX));
  EXPECT_THAT(message([&] { (void)file.at("real").real(1, 2); }), Names("real", 0.5));
  EXPECT_THAT(message([&] { (void)file.at("real").integer(0, 2); }), Names("real", 0.5));
  EXPECT_THAT(message([&] { (void)file.at("word").boolean(); }), Names("word", "\"x\\n\""));
  EXPECT_THAT(message([&] { (void)file.at("word").texts(); }), Names("word", "array"));
  EXPECT_THAT(message([&] { (void)file.at("texts").texts(); }), Names("texts", 1, "UTF-8"));
  EXPECT_THAT(message([&] { (void)file.at("texts").integers(0, 1); }), Names("texts", 2, "string"));
  EXPECT_THAT(message([&] { (void)file.at("numbers").integers(0, 5); }), Names("numbers", 1, 9, 5));
  EXPECT_THAT(message([&] { (void)file.at("numbers").integer(0, 5); }), Names("numbers", 2, "int32"));
  EXPECT_THAT(message([&] { (void)file.at("absent"); }), Names("absent"));
}

TEST_F(GgufFileTest, EveryShorterFileIsRefused) {
  const std::string bytes = good_file().file();
  const size_t data_end = bytes.size() - (64 - 34);  // without the padding behind the last tensor
  for (size_t size = 0; size < data_end; ++size) message_for(bytes.substr(0, size));
  EXPECT_NO_THROW((void)open(bytes.substr(0, data_end)));
  const size_t in_last_offset = good_file().header().size() - 3;
  EXPECT_THAT(message_for(bytes.substr(0, in_last_offset)),
              Names("tensor quantised", "truncated", in_last_offset));
}

TEST_F(GgufFileTest, WhatIsNoGgufOfAKnownVersionIsRefusedByName) {
  EXPECT_THAT(message_for("PK\x03\x04 and more bytes"), Names("GGUF", "PK"));
  EXPECT_THAT(message_for("version https://git-lfs.github.com/spec/v1\n"), Names("git lfs pull"));
  GgufBytes old = good_file();
  old.version = 1;
  EXPECT_THAT(message_for<Unsupported>(old), Names(1, 2, 3));
  old.version = 4;
  EXPECT_THAT(message_for<Unsupported>(old), Names(4, 3));
  old.version = 0x03000000;
  EXPECT_THAT(message_for<Unsupported>(old), Names("big-endian"));
  EXPECT_THAT(message_of<NotFound>([] { GgufFile file("/nowhere/x.gguf"); }), Names("/nowhere/x.gguf"));
}

TEST_F(GgufFileTest, ImpossibleCountsAreRefusedBeforeAnythingIsReadByThem) {
  const std::string bytes = good_file().file();
  const auto with = [&](size_t at, const std::string& part) {
    std::string changed = bytes;
    return changed.replace(at, part.size(), part);
  };
  EXPECT_THAT(message_for(with(8, bytes_of(UINT64_MAX))), Names("byte 8", UINT64_MAX, "tensors"));
  EXPECT_THAT(message_for(with(16, bytes_of(uint64_t{1} << 62))), Names("metadata values"));
  // One more than can follow.
  const uint64_t too_many = (bytes.size() - 24) / 13 + 1;
  EXPECT_THAT(message_for(with(16, bytes_of(too_many))), Names("byte 16", too_many, 13, bytes.size() - 24));
  // The length of the first key, and of its value.
  EXPECT_THAT(message_for(with(24, bytes_of(UINT64_MAX))), Names("metadata key 0", UINT64_MAX));
  EXPECT_THAT(message_for(with(24 + 8 + 20 + 4, bytes_of(UINT64_MAX - 7))), Names("general.architecture"));
  GgufBytes file = good_file();
  file.set_bytes("list",
                 bytes_of(GgufType::kArray) + bytes_of(GgufType::kFloat64) + bytes_of(uint64_t{1} << 61));
  EXPECT_THAT(message_for(file), Names("list", uint64_t{1} << 61));
}

TEST_F(GgufFileTest, TypesThatTheFormatDoesNotHaveAreNamed) {
  GgufBytes file = good_file();
  file.set_bytes("odd", bytes_of(uint32_t{13}) + "abcd");
  EXPECT_THAT(message_for(file), Names("odd", 13));
  file.set_bytes("odd", bytes_of(GgufType::kArray) + bytes_of(uint32_t{14}) + bytes_of(uint64_t{0}));
  EXPECT_THAT(message_for(file), Names("odd", 14));
  file.set_bytes("odd", bytes_of(GgufType::kArray) + bytes_of(GgufType::kArray) + bytes_of(uint64_t{0}));
  EXPECT_THAT(message_for<Unsupported>(file), Names("odd", "array of arrays"));

  file = good_file();
  file.tensor({.name = "t", .shape = {256}, .type = 10, .bytes = std::string(84, '\0')});
  EXPECT_THAT(message_for<Unsupported>(file), Names("tensor t", "Q2_K", "Q6_K", "F32"));
  file.tensor({.name = "t", .shape = {256}, .type = 99, .bytes = std::string(84, '\0')});
  EXPECT_THAT(message_for<Unsupported>(file), Names("tensor t", 99));
}

TEST_F(GgufFileTest, KeysAndTensorsThatAreThereTwiceAreRefused) {
  GgufBytes other = good_file();
  std::string bytes = other.set("b.count", uint32_t{1}).file();
  EXPECT_THAT(message_for(bytes.replace(bytes.find("b.count"), 1, "a")), Names("a.count"));
  GgufBytes twins = good_file();
  twins.tensor(floats("matriy", {1}, {0}));
  bytes = twins.file();
  EXPECT_THAT(message_for(bytes.replace(bytes.find("matriy"), 6, "matrix")), Names("tensor matrix"));
}

TEST_F(GgufFileTest, TensorsWithImpossibleNamesOrShapesAreRefused) {
  const auto message = [&](const GgufBytes::Tensor& tensor) {
    GgufBytes file = good_file();
    return message_for(file.tensor(tensor));
  };
  EXPECT_THAT(message(floats("", {1}, {0})), Names("tensor 2"));
  EXPECT_THAT(message(floats("a b", {1}, {0})), Names("tensor 2", "\"a b\""));
  EXPECT_THAT(message(floats("t", {}, {0})), Names("tensor t", 0));
  EXPECT_THAT(message(floats("t", {1, 1, 1, 1, 1}, {0})), Names("tensor t", 5, 4));
  EXPECT_THAT(message(floats("t", {2, 0}, {})), Names("tensor t", 0));
  EXPECT_THAT(message(floats("t", {1, uint64_t{1} << 63}, {0})), Names("tensor t", uint64_t{1} << 63));
  EXPECT_THAT(message(floats("t", {uint64_t{1} << 40, uint64_t{1} << 40}, {0})), Names("tensor t", "64 bit"));
  EXPECT_THAT(message({.name = "t", .shape = {2, 48}, .type = 2, .bytes = std::string(54, '\0')}),
              Names("tensor t", 48, 32, "Q4_0"));
}

TEST_F(GgufFileTest, TensorsBeyondTheEndOverlappingOrUnalignedAreRefused) {
  GgufBytes file = good_file();
  file.shift = 64;
  EXPECT_THAT(message_for(file), Names("tensor quantised", "34 bytes", 96, "truncated"));
  file.shift = uint64_t{0} - 32;  // the first begins just below 2^64
  EXPECT_THAT(message_for(file), Names("tensor matrix"));
  file.shift = 8;
  EXPECT_THAT(message_for(file), Names("tensor matrix", 8, 32));

  // The offset of the second tensor is the last number of the header.
  file = good_file();
  std::string bytes = file.file();
  bytes.replace(file.header().size() - 8, 8, bytes_of(uint64_t{0}));
  EXPECT_THAT(message_for(bytes), Names("quantised", "matrix", "overlaps"));
}

TEST_F(GgufFileTest, DataAreAlignedAsTheFileSays) {
  GgufBytes file = good_file();
  file.set("general.alignment", uint32_t{64});
  file.alignment = 64;
  EXPECT_EQ(open(file).find_tensor("quantised")->bytes[0], std::byte{1});
  file.set("general.alignment", uint32_t{48});
  EXPECT_THAT(message_for(file), Names("general.alignment", 48));
  file.set("general.alignment", uint32_t{0});
  EXPECT_THAT(message_for(file), Names("general.alignment", 0));
}

}  // namespace
}  // namespace allot::model
