// What happens when the disk does not take a commit: nothing that was acked is lost, nothing is counted
// twice, and a later start goes on. Disks are really full (a limit on the size of files; a small tmpfs where
// mounting is permitted) or really cannot be written, in processes of their own.
#include <gmock/gmock.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <csignal>

#include "aggregator/history_check.h"
#include "base/error.h"
#include "base/temporary_directory.h"
#include "tests/aggregator/core_driver.h"
#include "tests/aggregator/replay.h"
#include "tests/aggregator/simulated_spec.h"
#include "tests/names.h"

namespace allot::aggregator {
namespace {

// Works on the history in `directory` until a commit throws, in a child process, so that limits and mounts
// are its own. Its standard output: one line "acked N" for each commit that returned, then the message of the
// error.
std::string work_until_the_disk_fails(const std::filesystem::path& directory,
                                      const std::function<bool()>& prepare) {
  int ends[2];
  if (::pipe(ends) != 0) throw std::runtime_error("pipe failed");
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    const auto say = [&](const std::string& text) {
      [[maybe_unused]] const ssize_t written = ::write(ends[1], (text + "\n").data(), text.size() + 1);
    };
    try {
      if (!prepare()) {
        say("not permitted");
        ::_exit(0);
      }
      const wire::RunSpec spec = simulated_spec(1'000'000);
      ManualClock clock{Timestamp{Duration{1'700'000'000'000}}};
      const auto history = open_sqlite_history(directory / "history.sqlite", "test", clock.now());
      Core core(spec, policy::make_policy(policy_config(spec)), *history, clock.now());
      wire::Envelope message;
      *message.mutable_hello() = example_hello(spec, "w");
      core.receive({"peer"}, wire::encode(message), clock.now());
      for (int round = 0; round < 100'000; ++round) {
        clock.advance(Duration{10});
        message.mutable_lease_request()->set_count(8);
        core.receive({"peer"}, wire::encode(message), clock.now());
        Outputs outputs = core.take();
        int64_t acked = 0;
        for (const Reply& reply : outputs.replies) {
          for (const wire::Lease& lease : reply.envelope.grant().leases()) {
            *message.mutable_result() = result_of(lease, static_cast<int>(lease.sampling_seed() % 17));
            core.receive({"peer"}, wire::encode(message), clock.now());
            ++acked;
          }
        }
        for (Record& record : core.take().records) outputs.records.push_back(std::move(record));
        history->commit(outputs.records, core.counters(), clock.now());
        say("acked " + std::to_string(acked));
      }
      say("the disk never failed");
    } catch (const StorageError& error) {
      say(error.what());
    } catch (const std::exception& error) {
      say(std::string("another error: ") + error.what());
    }
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(ends[0], buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<size_t>(got));
  }
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return text;
}

int64_t acked_in(const std::string& said) {
  int64_t acked = 0;
  std::istringstream words(said);
  for (std::string line; std::getline(words, line);) {
    if (line.starts_with("acked ")) acked += std::stoll(line.substr(6));
  }
  return acked;
}

// What was acked before the disk failed is there, once; the state is the replay's; and the run goes on.
void expect_nothing_lost(const std::filesystem::path& file, int64_t acked) {
  const wire::RunSpec spec = simulated_spec(1'000'000);
  const HistoryReport report = check_history(file, spec);
  for (const HistoryProblem& problem : report.problems)
    ADD_FAILURE() << problem.where << ": " << problem.what;
  EXPECT_TRUE(report.exact);
  const SystemClock clock;
  const auto history = open_sqlite_history(file, "test", clock.now());
  int64_t told = 0;
  history->replay([&](const Record& record) { told += std::holds_alternative<EpisodeTold>(record); });
  EXPECT_EQ(told, acked);
  const Core core(spec, policy::make_policy(policy_config(spec)), *history, clock.now());
  EXPECT_EQ(core.policy().save(), replay_by_hand(*history, spec)->save());
  EXPECT_NO_THROW(history->commit({}, core.counters(), clock.now()));
}

class DiskFaultTest : public testing::Test {
 protected:
  TemporaryDirectory directory_;
  std::filesystem::path file_ = directory_.path() / "history.sqlite";
};

TEST_F(DiskFaultTest, AFullDiskEndsTheProcessWithItsNameAndLosesNothingThatWasAcked) {
  // SQLite writes its log first, so both the log and the database meet the limit at some size.
  for (const rlim_t limit : {200'000u, 700'000u, 5'000'000u}) {
    SCOPED_TRACE(limit);
    std::filesystem::remove_all(directory_.path());
    std::filesystem::create_directories(directory_.path());
    const std::string said = work_until_the_disk_fails(directory_.path(), [&] {
      std::signal(SIGXFSZ, SIG_IGN);  // write() fails instead, as it does on a full disk
      const rlimit files{limit, limit};
      return ::setrlimit(RLIMIT_FSIZE, &files) == 0;
    });
    EXPECT_THAT(said, Names(file_, "disk", "full"));
    EXPECT_GT(acked_in(said), 0);
    expect_nothing_lost(file_, acked_in(said));
  }
}

TEST_F(DiskFaultTest, ATmpfsThatIsFullLosesNothingThatWasAcked) {
  const auto saved = directory_.path() / "saved";
  const auto mounted = directory_.path() / "mounted";
  std::filesystem::create_directories(saved);
  std::filesystem::create_directories(mounted);
  if (::mount("none", mounted.c_str(), "tmpfs", 0, "size=2m") != 0) {
    GTEST_SKIP() << "mounting a tmpfs is not permitted here (needs CAP_SYS_ADMIN)";
  }
  const std::string said = work_until_the_disk_fails(mounted, [] { return true; });
  EXPECT_THAT(said, Names(mounted / "history.sqlite", "full"));
  // More room, as an operator would make: the same files on a disk with space.
  for (const auto& entry : std::filesystem::directory_iterator(mounted)) {
    if (entry.path().extension() != ".sqlite-shm") std::filesystem::copy(entry, saved);
  }
  EXPECT_EQ(::umount(mounted.c_str()), 0);
  EXPECT_GT(acked_in(said), 0);
  expect_nothing_lost(saved / "history.sqlite", acked_in(said));
}

TEST_F(DiskFaultTest, AStartOnADiskThatTurnedReadOnlyIsRefusedWithItsName) {
  const auto mounted = directory_.path() / "mounted";
  std::filesystem::create_directories(mounted);
  if (::mount("none", mounted.c_str(), "tmpfs", 0, "size=50m") != 0) {
    GTEST_SKIP() << "mounting a tmpfs is not permitted here (needs CAP_SYS_ADMIN)";
  }
  ManualClock clock{Timestamp{Duration{1'700'000'000'000}}};
  {
    const auto history = open_sqlite_history(mounted / "history.sqlite", "test", clock.now());
    EXPECT_NO_THROW(history->commit({}, {}, clock.now()));
  }
  ASSERT_EQ(::mount("none", mounted.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "size=50m"), 0);
  EXPECT_THAT([&] { (void)open_sqlite_history(mounted / "history.sqlite", "test", clock.now()); },
              testing::ThrowsMessage<StorageError>(Names(mounted / "history.sqlite", "written")));
  EXPECT_EQ(::umount(mounted.c_str()), 0);
}

TEST_F(DiskFaultTest, AClockThatJumpsBackwardsChangesNothingButTheTimes) {
  CoreDriver driver(Storage::kSqlite, example_spec());
  driver.hello("w");
  for (int i = 0; i < 6; ++i) {
    for (const wire::Lease& lease : driver.leases("w", 1)) driver.answer("w", result_of(lease, i % 5));
    // Between two starts the wall clock was set back by an hour.
    driver.clock().advance(std::chrono::hours{-1});
    driver.crash();
    driver.hello("w");
  }
  const HistoryReport report = check_history(driver.file(), driver.spec());
  for (const HistoryProblem& problem : report.problems)
    ADD_FAILURE() << problem.where << ": " << problem.what;
  EXPECT_TRUE(report.exact);
  EXPECT_EQ(driver.status().counters().accepted(), 6);
  EXPECT_GE(driver.status().elapsed_s(), 0);
  EXPECT_EQ(driver.core().policy().save(), replay_by_hand(driver.history(), driver.spec())->save());
}

}  // namespace
}  // namespace allot::aggregator
