#include "base/temporary_directory.h"

#include <gmock/gmock.h>
#include <stdlib.h>

#include <filesystem>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "tests/names.h"

namespace allot {
namespace {

using testing::ThrowsMessage;

// Sets TMPDIR and puts the old value back.
class TmpdirIs {
 public:
  explicit TmpdirIs(const std::string& value) {
    if (const char* before = ::getenv("TMPDIR")) before_ = before;
    ::setenv("TMPDIR", value.c_str(), 1);
  }
  ~TmpdirIs() {
    if (before_)
      ::setenv("TMPDIR", before_->c_str(), 1);
    else
      ::unsetenv("TMPDIR");
  }

 private:
  std::optional<std::string> before_;
};

TEST(TemporaryDirectory, EachIsNewAndEmptyAndItsOwnersAlone) {
  const TemporaryDirectory one, other;
  EXPECT_NE(one.path(), other.path());
  EXPECT_TRUE(std::filesystem::is_empty(one.path()));
  EXPECT_EQ(std::filesystem::status(one.path()).permissions(), std::filesystem::perms::owner_all);
}

TEST(TemporaryDirectory, GoesWithAllThatIsInIt) {
  std::filesystem::path path;
  {
    const TemporaryDirectory directory;
    path = directory.path();
    write_file_atomically(path / "deep" / "file", "x");
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(TemporaryDirectory, MayBeGoneBeforeItsObjectEnds) {
  const TemporaryDirectory directory;
  EXPECT_TRUE(std::filesystem::remove(directory.path()));
}

TEST(TemporaryDirectory, StaysWhenItIsKept) {
  const TemporaryDirectory parent;
  const TmpdirIs tmpdir(parent.path().string());
  std::filesystem::path path;
  {
    TemporaryDirectory directory;
    path = directory.path();
    write_file_atomically(path / "file", "x");
    directory.keep();
  }
  EXPECT_EQ(path.parent_path(), parent.path());
  EXPECT_EQ(read_file(path / "file"), "x");
}

TEST(TemporaryDirectory, WithoutAPlaceForItIsAStorageErrorThatNamesThePlace) {
  const TemporaryDirectory parent;
  const std::string absent = (parent.path() / "absent").string();
  const TmpdirIs tmpdir(absent);
  EXPECT_THAT([] { TemporaryDirectory directory; }, ThrowsMessage<StorageError>(Names(absent, "TMPDIR")));
}

}  // namespace
}  // namespace allot
