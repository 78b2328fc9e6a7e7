// Stop strings and keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/serve/api_keys.h"
#include "app/serve/stop_scanner.h"
#include "base/error.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using ::testing::ElementsAre;

// The pieces that are shown of these.
std::vector<std::string> shown(StopScanner* scanner, const std::vector<std::string>& pieces) {
  std::vector<std::string> all;
  for (const std::string& piece : pieces) all.push_back(scanner->add(piece));
  all.push_back(scanner->rest());
  return all;
}

TEST(StopScanner, EndsBeforeAStopStringThatComesInPieces) {
  StopScanner scanner({"END", "\n\n"});
  EXPECT_THAT(shown(&scanner, {"one E", "N", "Dtwo", "three"}), ElementsAre("one ", "", "", "", ""));
  EXPECT_TRUE(scanner.stopped());
}

TEST(StopScanner, ShowsWhatOnlyLookedLikeABeginning) {
  StopScanner scanner({"aab"});
  EXPECT_THAT(shown(&scanner, {"xa", "a", "a", "c", "aa"}), ElementsAre("x", "", "a", "aac", "", "aa"));
  EXPECT_FALSE(scanner.stopped());
}

TEST(StopScanner, TheFirstInTheTextDecides) {
  StopScanner scanner({"later", "soon"});
  EXPECT_THAT(shown(&scanner, {"a soon later"}), ElementsAre("a ", ""));
}

TEST(ApiKeys, AreLinesOfAFile) {
  const TemporaryDirectory directory;
  const auto file = directory.path() / "keys";
  write_file_atomically(file, "# mine\n\n0123456789abcdef\r\nfedcba9876543210\n");
  const ApiKeys keys = ApiKeys::read(file);
  EXPECT_TRUE(keys.admits("Bearer 0123456789abcdef"));
  EXPECT_TRUE(keys.admits("Bearer fedcba9876543210"));
  EXPECT_FALSE(keys.admits("Bearer # mine"));
  EXPECT_FALSE(keys.admits("Bearer "));
  EXPECT_TRUE(ApiKeys().admits(""));
  write_file_atomically(file, "0123456789abcdef\nshort\n");
  EXPECT_THAT(message_of<CorruptFile>([&] { ApiKeys::read(file); }), Names("line 2", 16));
  write_file_atomically(file, "# none\n");
  EXPECT_THROW(ApiKeys::read(file), CorruptFile);
}

}  // namespace
}  // namespace allot::app
