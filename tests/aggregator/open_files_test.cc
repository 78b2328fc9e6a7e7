// A process that may open no more files says so, and does not blame the disk.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "aggregator/sqlite.h"
#include "base/error.h"
#include "base/temporary_directory.h"
#include "tests/names.h"

namespace allot::aggregator {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// The message of the error that `work` throws in a child process whose table of open files has `free` places
// left.
std::string message_with_open_files_left(int free, const std::function<void()>& work) {
  int ends[2];
  if (::pipe(ends) != 0) throw std::runtime_error("pipe failed");
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit files{64, 64};
    std::string said = ::setrlimit(RLIMIT_NOFILE, &files) == 0 ? "no error" : "no limit";
    std::vector<int> taken;
    // UBSan opens a file where it meets an exception of a type for the first time.
    try {
      throw StorageError("seen once");
    } catch (const StorageError& seen) {
      [[maybe_unused]] const std::string text = seen.what();
    }
    for (int file = 0; (file = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) taken.push_back(file);
    for (int i = 0; i < free; ++i) {
      ::close(taken.back());
      taken.pop_back();
    }
    try {
      work();
    } catch (const StorageError& error) {
      said = error.what();
    }
    [[maybe_unused]] const ssize_t written = ::write(ends[1], said.data(), said.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string said(4096, '\0');
  const ssize_t got = ::read(ends[0], said.data(), said.size());
  said.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return said;
}

TEST(OpenFiles, AHistoryThatCannotBeOpenedForTheirNumberDoesNotBlameTheDisk) {
  const TemporaryDirectory directory;
  const auto file = directory.path() / "history.sqlite";
  Database database(file, Database::Mode::kReadWrite);
  database.execute("PRAGMA journal_mode = WAL; CREATE TABLE t(x)");
  // The database itself cannot be opened, or only its log.
  for (const int free : {0, 1}) {
    SCOPED_TRACE(free);
    for (const auto mode : {Database::Mode::kReadOnly, Database::Mode::kReadWrite}) {
      const std::string said = message_with_open_files_left(free, [&] {
        const Database opened(file, mode);
        Statement(opened, "SELECT count(*) FROM t").value();
      });
      EXPECT_THAT(said, AllOf(Names(file, "64 files", "ulimit -n"), Not(HasSubstr("disk"))));
    }
  }
}

}  // namespace
}  // namespace allot::aggregator
