#include "model/safetensors_writer.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "base/file.h"
#include "tests/model/files/test_directory.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using testing::ElementsAre;

class SafetensorsWriterTest : public testing::Test {
 protected:
  static std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

  TestDirectory directory_;
  const std::filesystem::path path_ = directory_.path() / "model.safetensors";
  const std::vector<TensorHeader> headers_ = {{.name = "z", .dtype = TensorDType::kF16, .shape = {2, 2}},
                                              {.name = "a", .dtype = TensorDType::kU8, .shape = {3}}};
};

TEST_F(SafetensorsWriterTest, WritesWhatTheReaderReadsWhereverPiecesEnd) {
  SafetensorsWriter writer(path_, headers_);
  for (const char* piece : {"0", "1234", "", "567xy", "z"}) writer.write(bytes(piece));
  writer.finish();
  const SafetensorsFile file(path_);
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.tensors()[0].name, "z");
  EXPECT_EQ(file.tensors()[0].dtype, TensorDType::kF16);
  EXPECT_THAT(file.tensors()[0].shape, ElementsAre(2, 2));
  EXPECT_EQ(file.tensors()[0].bytes[7], std::byte{'7'});
  EXPECT_EQ(file.tensors()[1].name, "a");
  EXPECT_EQ(file.tensors()[1].bytes[2], std::byte{'z'});
  EXPECT_EQ(read_file(path_).find("01234567xyz") % 8, 0u);
}

TEST_F(SafetensorsWriterTest, RefusesMoreOrFewerBytesThanTheHeaderAnnounces) {
  SafetensorsWriter writer(path_, headers_);
  writer.write(bytes("01234567"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { writer.write(bytes("wxyz")); }), Names(path_, 4, 3));
  EXPECT_THAT(message_of<InvalidArgument>([&] { writer.finish(); }), Names(path_, 3));
}

TEST_F(SafetensorsWriterTest, NeverWritesOverAFile) {
  directory_.write("model.safetensors", "mine");
  EXPECT_THAT(message_of<StorageError>([&] { SafetensorsWriter writer(path_, headers_); }), Names(path_));
  EXPECT_EQ(read_file(path_), "mine");
}

TEST_F(SafetensorsWriterTest, AFolderThatIsNotThereIsNamed) {
  EXPECT_THAT(
      message_of<StorageError>([&] { SafetensorsWriter("/nowhere/x.safetensors", headers_).finish(); }),
      Names("/nowhere/x.safetensors", "No such file or directory"));
}

}  // namespace
}  // namespace allot::model
