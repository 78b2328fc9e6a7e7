#include "model/gguf/blocks.h"

#include <gmock/gmock.h>

#include <bit>
#include <filesystem>
#include <set>

#include "model/gguf/gguf_file.h"
#include "tests/model/gguf/gguf_bytes.h"

namespace allot::model {
namespace {

std::vector<float> numbers_of(const BlockLayout& layout, std::span<const std::byte> bytes) {
  std::vector<float> numbers(bytes.size() / layout.bytes * layout.elements);
  dequantize(layout, bytes, numbers);
  return numbers;
}

std::vector<float> numbers_of(BlockType type, const std::string& bytes) {
  return numbers_of(*find_block_layout(static_cast<uint32_t>(type)), std::as_bytes(std::span(bytes)));
}

std::vector<uint32_t> bits_of(const std::vector<float>& numbers) {
  std::vector<uint32_t> bits;
  for (const float number : numbers) bits.push_back(std::bit_cast<uint32_t>(number));
  return bits;
}

// A float16 as it lies in a file.
const std::string kHalf = {'\x00', '\x38'};   // 0.5
const std::string kTwo = {'\x00', '\x40'};    // 2
const std::string kMinus = {'\x00', '\xBC'};  // -1

TEST(Blocks, OfEveryTypeHaveTheBitsThatThePythonPackageGives) {
  const GgufFile file(std::filesystem::path(ALLOT_SOURCE_DIR) / "tests/data/gguf/blocks.gguf");
  std::set<std::string> types;
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.name.ends_with(".expected")) continue;
    types.insert(tensor.layout->name);
    EXPECT_EQ(tensor.name, tensor.layout->name);
    const GgufTensor* expected = file.find_tensor(tensor.name + ".expected");
    ASSERT_NE(expected, nullptr) << tensor.name;
    const std::vector<float> numbers = numbers_of(*tensor.layout, tensor.bytes);
    EXPECT_EQ(bits_of(numbers), bits_of(numbers_of(*expected->layout, expected->bytes))) << tensor.name;
    EXPECT_GT(std::set(numbers.begin(), numbers.end()).size(), 16u) << tensor.name;
  }
  EXPECT_THAT(types, testing::ElementsAre("BF16", "F16", "F32", "Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_1",
                                          "Q5_K", "Q6_K", "Q8_0"));
}

TEST(Blocks, OfFourBitsHoldTheFirstHalfInTheLowNibbles) {
  const std::string nibbles = "\x1F" + std::string(15, '\x88');
  const std::vector<float> q4_0 = numbers_of(BlockType::kQ4_0, kHalf + nibbles);
  ASSERT_EQ(q4_0.size(), 32u);
  EXPECT_EQ(q4_0[0], 3.5f);    // (15 - 8) / 2
  EXPECT_EQ(q4_0[16], -3.5f);  // (1 - 8) / 2
  EXPECT_EQ(q4_0[1], 0);
  const std::vector<float> q4_1 = numbers_of(BlockType::kQ4_1, kHalf + kMinus + nibbles);
  EXPECT_EQ(q4_1[0], 6.5f);
  EXPECT_EQ(q4_1[16], -0.5f);
}

TEST(Blocks, OfFiveBitsHaveTheFifthBitsApart) {
  // Bits 0 and 31.
  const std::string fifth = {'\x01', '\0', '\0', '\x80'};
  const std::vector<float> q5_0 = numbers_of(BlockType::kQ5_0, kTwo + fifth + std::string(16, '\x21'));
  EXPECT_EQ(q5_0[0], 2);     // (1 + 16 - 16) * 2
  EXPECT_EQ(q5_0[1], -30);   // (1 - 16) * 2
  EXPECT_EQ(q5_0[30], -28);  // (2 - 16) * 2
  EXPECT_EQ(q5_0[31], 4);    // (2 + 16 - 16) * 2
  const std::vector<float> q5_1 =
      numbers_of(BlockType::kQ5_1, kTwo + kMinus + fifth + std::string(16, '\x21'));
  EXPECT_EQ(q5_1[0], 33);
  EXPECT_EQ(q5_1[1], 1);
}

TEST(Blocks, OfEightBitsAreSigned) {
  const std::vector<float> q8_0 = numbers_of(BlockType::kQ8_0, kHalf + "\x80\x7F" + std::string(30, '\0'));
  EXPECT_EQ(q8_0[0], -64);
  EXPECT_EQ(q8_0[1], 63.5f);
}

TEST(Blocks, TypesAreFoundByNumberAndNamedAlsoWhenTheyCannotBeRead) {
  EXPECT_STREQ(find_block_layout(12)->name, "Q4_K");
  EXPECT_EQ(find_block_layout(10), nullptr);
  EXPECT_EQ(block_type_name(10), "Q2_K");
  EXPECT_EQ(block_type_name(14), "Q6_K");
  EXPECT_EQ(block_type_name(1000), "");
  EXPECT_THAT(readable_block_types(), testing::StartsWith("F32, F16, BF16, "));
}

}  // namespace
}  // namespace allot::model
