#include "base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/sha256.h"
#include "base/temporary_directory.h"
#include "tests/names.h"

namespace allot {
namespace {

class FileTest : public ::testing::Test {
 protected:
  const TemporaryDirectory directory_;
  const std::filesystem::path folder_ = directory_.path() / "new";
};

TEST_F(FileTest, WhatWasWrittenIsReadBackWithEveryByte) {
  const std::string content("a\0b\r\n\xff", 6);
  write_file_atomically(folder_ / "deep" / "file", content);
  EXPECT_EQ(read_file(folder_ / "deep" / "file"), content);
  write_file_atomically(folder_ / "deep" / "file", "");
  EXPECT_EQ(read_file(folder_ / "deep" / "file"), "");
}

TEST_F(FileTest, NoTemporaryFileStaysBehind) {
  write_file_atomically(folder_ / "file", "x");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(FileTest, AMissingFileIsNotFoundUnderItsName) {
  try {
    read_file(folder_ / "absent");
    FAIL() << "read a file that does not exist";
  } catch (const NotFound& error) {
    EXPECT_THAT(error.what(), Names(folder_ / "absent"));
  }
}

TEST_F(FileTest, AFolderInTheWayIsAStorageError) {
  std::filesystem::create_directories(folder_ / "taken" / "inside");
  EXPECT_THROW(write_file_atomically(folder_ / "taken", "x"), StorageError);
}

// FIPS 180-2, appendix B, and the empty message.
TEST_F(FileTest, Sha256GivesThePublishedDigests) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  write_file_atomically(folder_ / "abc", "abc");
  EXPECT_EQ(sha256_file(folder_ / "abc"), sha256_hex("abc"));
  Sha256 pieces;
  for (int i = 0; i < 2; ++i) {
    for (const char* piece : {"a", "", "bc"}) pieces.update(piece);
    EXPECT_EQ(hex(pieces.finish()), sha256_hex("abc")) << "the end of one digest begins the next";
  }
  EXPECT_THROW(sha256_file(folder_ / "absent"), NotFound);
}

}  // namespace
}  // namespace allot
