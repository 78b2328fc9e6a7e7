#include "model/safetensors.h"

#include <gmock/gmock.h>

#include <cstring>

#include "base/error.h"
#include "base/json.h"
#include "tests/model/files/test_directory.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

std::string file_bytes(const std::string& header, const std::string& data) {
  std::string bytes;
  for (size_t i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  return bytes + header + data;
}

json entry(const std::string& dtype, const json& shape, uint64_t begin, uint64_t end) {
  return {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, end}}};
}

// Two tensors of 8 and 4 bytes.
json good_header() {
  return {{"a", entry("F32", {2}, 0, 8)}, {"b", entry("BF16", {1, 2}, 8, 12)}};
}
const std::string kGoodData = "abcdefghijkl";

class SafetensorsTest : public testing::Test {
 protected:
  std::string message_for(const std::string& bytes) {
    const auto path = directory_.write("x.safetensors", bytes);
    const std::string message = message_of<CorruptFile>([&] { SafetensorsFile file(path); });
    EXPECT_THAT(message, Names(path));
    EXPECT_THAT(message, testing::Not(HasSubstr("\n")));
    return message;
  }
  std::string message_for(const json& header, const std::string& data = kGoodData) {
    return message_for(file_bytes(header.dump(), data));
  }

  TestDirectory directory_;
};

template <typename T>
T value_at(const TensorView& tensor, size_t index) {
  T value;
  std::memcpy(&value, tensor.bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

TEST_F(SafetensorsTest, ReadsAFileOfTheSafetensorsPackage) {
  std::filesystem::copy(std::filesystem::path(ALLOT_SOURCE_DIR) / "tests/data/safetensors/mixed.safetensors",
                        directory_.path() / "model.safetensors");
  const Checkpoint checkpoint = Checkpoint::open(directory_.path());
  EXPECT_EQ(checkpoint.tensors().size(), 6u);
  const TensorView& matrix = checkpoint.at("matrix");
  EXPECT_EQ(matrix.dtype, TensorDType::kF32);
  EXPECT_THAT(matrix.shape, ElementsAre(2, 3));
  EXPECT_EQ(value_at<float>(matrix, 5), 1.25f);
  EXPECT_EQ(checkpoint.at("half").dtype, TensorDType::kF16);
  EXPECT_EQ(value_at<uint16_t>(checkpoint.at("half"), 0), 0x3E00);  // 1.5
  EXPECT_THAT(checkpoint.at("scalar").shape, ElementsAre());
  EXPECT_EQ(value_at<int64_t>(checkpoint.at("scalar"), 0), 7);
  EXPECT_THAT(checkpoint.at("empty").shape, ElementsAre(0, 4));
  EXPECT_TRUE(checkpoint.at("empty").bytes.empty());
  EXPECT_THAT(checkpoint.at("bytes").bytes, ElementsAre(std::byte{1}, std::byte{2}, std::byte{3}));
  EXPECT_EQ(checkpoint.at("flags").dtype, TensorDType::kBool);
}

TEST_F(SafetensorsTest, GivesTensorsInFileOrderAndKeepsThemWhenMoved) {
  const json header = {{"z", entry("F32", {2}, 0, 8)}, {"b", entry("BF16", {1, 2}, 8, 12)}};
  SafetensorsFile first(directory_.write("x.safetensors", file_bytes(header.dump() + "   ", kGoodData)));
  const SafetensorsFile file = std::move(first);
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.tensors()[0].name, "z");
  EXPECT_EQ(file.tensors()[1].name, "b");
  EXPECT_EQ(value_at<char>(file.tensors()[1], 0), 'i');
}

TEST_F(SafetensorsTest, NamesTheDTypesAsTheFormatDoes) {
  EXPECT_STREQ(dtype_name(TensorDType::kBF16), "BF16");
  EXPECT_STREQ(dtype_name(TensorDType::kF8E4M3), "F8_E4M3");
}

TEST_F(SafetensorsTest, AFileTooShortForTheHeaderLengthIsRefused) {
  EXPECT_THAT(message_for(std::string("abc")), Names(3, 8));
  EXPECT_THAT(message_for(std::string()), Names(0));
}

TEST_F(SafetensorsTest, AFileCutAnywhereIsRefused) {
  const std::string whole = file_bytes(good_header().dump(), kGoodData);
  for (size_t size = 0; size < whole.size(); ++size) {
    SCOPED_TRACE("cut to " + std::to_string(size) + " of " + std::to_string(whole.size()) + " bytes");
    EXPECT_NE(message_for(whole.substr(0, size)), "");
  }
}

TEST_F(SafetensorsTest, AHeaderCutShortIsSaidToBeTruncated) {
  const std::string header = good_header().dump();
  EXPECT_THAT(message_for(file_bytes(header, "").substr(0, 20)), Names(header.size(), 12, "truncated"));
}

TEST_F(SafetensorsTest, AnAbsurdHeaderLengthIsRefusedWithoutReadingIt) {
  EXPECT_THAT(message_for(std::string(16, '\xFF')), Names(18446744073709551615u, "safetensors"));
}

TEST_F(SafetensorsTest, AGitLfsPointerIsNamedAsSuch) {
  EXPECT_THAT(message_for(std::string("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")),
              Names("git lfs pull"));
}

TEST_F(SafetensorsTest, AHeaderThatIsNotJsonIsRefusedWithTheOffset) {
  EXPECT_THAT(message_for(file_bytes(R"({"a": !})", kGoodData)), Names("JSON", 15));
}

TEST_F(SafetensorsTest, AHeaderThatIsNoObjectIsRefused) {
  EXPECT_THAT(message_for(file_bytes("[1]", "")), Names("[1]", "JSON"));
}

TEST_F(SafetensorsTest, ATensorListedTwiceIsRefused) {
  const std::string one = R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  EXPECT_THAT(message_for(file_bytes("{" + one + "," + one + "}", "x")), Names("a", "twice"));
}

TEST_F(SafetensorsTest, AnUnknownDTypeIsRefusedWithTheKnownOnes) {
  json header = good_header();
  header["b"]["dtype"] = "Q4";
  EXPECT_THAT(message_for(header), Names("b.dtype", "Q4", "F32", "F16", "BF16"));
}

TEST_F(SafetensorsTest, MissingAndMistypedFieldsAreRefusedByName) {
  json header = good_header();
  header["a"].erase("shape");
  EXPECT_THAT(message_for(header), Names("a.shape", "missing"));
  header = good_header();
  header["a"]["shape"] = {-2};
  EXPECT_THAT(message_for(header), Names("a.shape[0]", -2, 0));
  header = good_header();
  header["a"]["data_offsets"] = {0, 4, 8};
  EXPECT_THAT(message_for(header), Names("a.data_offsets", "[0,4,8]", "two"));
  header = good_header();
  header["a"]["data_offsets"] = {0, 18446744073709551615u};
  EXPECT_THAT(message_for(header), Names("a.data_offsets[1]", 18446744073709551615u));
}

TEST_F(SafetensorsTest, AShapeThatOverflowsIsRefused) {
  json header = good_header();
  header["a"]["shape"] = {int64_t{1} << 40, int64_t{1} << 40};
  EXPECT_THAT(message_for(header), Names("a.shape", "[1099511627776,1099511627776]", 64));
}

TEST_F(SafetensorsTest, AShapeThatDisagreesWithTheByteCountIsRefused) {
  json header = good_header();
  header["a"]["shape"] = {3};
  EXPECT_THAT(message_for(header), Names("a.data_offsets", "[0,8]", 12, "[3]", "F32", 8));
}

TEST_F(SafetensorsTest, OffsetsOutOfOrderAreRefused) {
  json header = good_header();
  header["a"]["data_offsets"] = {8, 0};
  EXPECT_THAT(message_for(header), Names("a.data_offsets", "[8,0]", "begin", "end"));
}

TEST_F(SafetensorsTest, OverlappingTensorsAreRefusedWithBoth) {
  json header = good_header();
  header["b"]["data_offsets"] = {6, 10};
  EXPECT_THAT(message_for(header, "abcdefghij"),
              Names("b", "data_offsets", "[6, 10)", "overlap", "a", "[0, 8)"));
}

TEST_F(SafetensorsTest, AGapBetweenTensorsIsRefused) {
  json header = good_header();
  header["b"]["data_offsets"] = {10, 14};
  EXPECT_THAT(message_for(header, "abcdefghijklmn"), Names("b", "data_offsets", "[10, 14)", "gap", 8));
}

TEST_F(SafetensorsTest, ATensorBeyondTheEndIsRefusedWithTheBytesThere) {
  EXPECT_THAT(message_for(good_header(), "abcdefghi"), Names("b", "data_offsets", "[8, 12)", 9, "truncated"));
}

TEST_F(SafetensorsTest, BytesBehindTheLastTensorAreRefused) {
  EXPECT_THAT(message_for(good_header(), kGoodData + "zz"), Names(14, 12));
}

TEST_F(SafetensorsTest, AMissingFileAndADirectoryAreNotFound) {
  EXPECT_THAT(message_of<NotFound>([&] { SafetensorsFile file(directory_.path() / "none.safetensors"); }),
              Names("none.safetensors", "No such file"));
  EXPECT_THAT(message_of<NotFound>([&] { SafetensorsFile file(directory_.path()); }),
              Names(directory_.path(), "regular"));
}

class CheckpointTest : public SafetensorsTest {
 protected:
  void SetUp() override {
    directory_.write("one.safetensors", file_bytes(json{{"a", entry("F32", {2}, 0, 8)}}.dump(), "abcdefgh"));
    directory_.write("two.safetensors", file_bytes(json{{"b", entry("BF16", {1, 2}, 0, 4)}}.dump(), "ijkl"));
  }
  void write_index(const json& weight_map) {
    directory_.write("model.safetensors.index.json",
                     json{{"metadata", json::object()}, {"weight_map", weight_map}}.dump());
  }
  template <typename Error>
  std::string open_message() {
    return message_of<Error>([&] { Checkpoint::open(directory_.path()); });
  }
};

TEST_F(CheckpointTest, JoinsTheShardsOfAnIndex) {
  write_index({{"a", "one.safetensors"}, {"b", "two.safetensors"}});
  const Checkpoint checkpoint = Checkpoint::open(directory_.path());
  EXPECT_EQ(checkpoint.tensors().size(), 2u);
  EXPECT_EQ(value_at<char>(checkpoint.at("a"), 0), 'a');
  EXPECT_EQ(value_at<char>(checkpoint.at("b"), 0), 'i');
  EXPECT_TRUE(checkpoint.contains("b"));
  EXPECT_FALSE(checkpoint.contains("c"));
}

TEST_F(CheckpointTest, LeavesOutTensorsThatTheIndexDoesNotList) {
  directory_.write("one.safetensors", file_bytes(good_header().dump(), kGoodData));
  write_index({{"a", "one.safetensors"}});
  const Checkpoint checkpoint = Checkpoint::open(directory_.path());
  EXPECT_TRUE(checkpoint.contains("a"));
  EXPECT_FALSE(checkpoint.contains("b"));
}

TEST_F(CheckpointTest, AnAbsentTensorIsNamedWithTheDirectory) {
  write_index({{"a", "one.safetensors"}});
  const Checkpoint checkpoint = Checkpoint::open(directory_.path());
  EXPECT_THAT(message_of<CorruptFile>([&] { checkpoint.at("lm_head.weight"); }),
              Names(directory_.path(), 1, "lm_head.weight"));
}

TEST_F(CheckpointTest, ADirectoryWithoutWeightsIsNotFound) {
  EXPECT_THAT(open_message<NotFound>(), Names(directory_.path(), "model.safetensors.index.json"));
}

TEST_F(CheckpointTest, AMissingShardIsNotFoundWithWhatItShouldHold) {
  write_index({{"a", "one.safetensors"}, {"b", "three.safetensors"}});
  EXPECT_THAT(open_message<NotFound>(), Names("three.safetensors", "missing", 1, "b"));
}

TEST_F(CheckpointTest, ATensorThatItsShardLacksIsCorrupt) {
  write_index({{"a", "two.safetensors"}});
  EXPECT_THAT(open_message<CorruptFile>(),
              Names("two.safetensors", "tensor a", "model.safetensors.index.json"));
}

TEST_F(CheckpointTest, AShardOutsideTheDirectoryIsRefused) {
  for (const char* name : {"../one.safetensors", "/etc/passwd", "..", "sub/one.safetensors"}) {
    write_index({{"a", name}});
    EXPECT_THAT(open_message<CorruptFile>(), Names("weight_map.a", name));
  }
}

TEST_F(CheckpointTest, ABrokenIndexIsCorrupt) {
  directory_.write("model.safetensors.index.json", "{");
  EXPECT_THAT(open_message<CorruptFile>(), Names("model.safetensors.index.json", "JSON"));
  directory_.write("model.safetensors.index.json", "{}");
  EXPECT_THAT(open_message<CorruptFile>(), Names("weight_map", "missing"));
  write_index(json::object());
  EXPECT_THAT(open_message<CorruptFile>(), Names("weight_map", "{}"));
}

}  // namespace
}  // namespace allot::model
