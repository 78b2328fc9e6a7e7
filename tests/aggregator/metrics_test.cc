#include "aggregator/metrics.h"

#include <gmock/gmock.h>

#include <set>
#include <sstream>

#include "aggregator/live_state.h"

namespace allot::aggregator {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Snapshot snapshot() {
  Snapshot made;
  made.status.set_run_id("example");
  made.status.set_stage("learn");
  made.status.set_lease_ms(1000);
  return made;
}

std::string text_of(const Snapshot& from) {
  return prometheus_text(&from, true, "1.0", {}, {});
}

TEST(MetricsTest, HistogramCountsWhatIsAtOrBelowEachBound) {
  Histogram histogram({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  histogram.observe(0.5);
  histogram.observe(1);
  histogram.observe(1.5, 3);
  histogram.observe(100);
  EXPECT_EQ(histogram.up_to(0), 2);
  EXPECT_EQ(histogram.up_to(1), 5);
  EXPECT_EQ(histogram.up_to(11), 5);
  EXPECT_EQ(histogram.count(), 6);
  EXPECT_EQ(histogram.sum(), 106);
}

TEST(MetricsTest, TimesFollowTheWallClockThatWasWrongAtTheStart) {
  Snapshot late = snapshot();
  late.at = Timestamp{2000s};
  late.figures.last_progress = Timestamp{1500s};
  late.wall_ahead = 1'760'000'000s;
  EXPECT_THAT(text_of(late), AllOf(HasSubstr("\nallot_last_progress_timestamp_seconds 1760001500\n"),
                                   HasSubstr("\nallot_snapshot_timestamp_seconds 1760002000\n")));
}

TEST(MetricsTest, LabelValuesAreEscaped) {
  Snapshot odd = snapshot();
  odd.status.set_model("a\"b\\c\nd");
  EXPECT_THAT(text_of(odd), HasSubstr(R"(model="a\"b\\c\nd",)"));
}

TEST(MetricsTest, EveryCounterOfAStatusIsThereOnce) {
  Snapshot counted = snapshot();
  auto& counters = *counted.status.mutable_counters();
  const auto& reflection = *counters.GetReflection();
  const int fields = counters.GetDescriptor()->field_count();
  for (int i = 0; i < fields; ++i)
    reflection.SetInt64(&counters, counters.GetDescriptor()->field(i), 1000 + i);
  std::multiset<std::string> values;
  std::istringstream lines(text_of(counted));
  for (std::string line; std::getline(lines, line);) values.insert(line.substr(line.rfind(' ') + 1));
  for (int i = 0; i < fields; ++i) {
    EXPECT_EQ(values.count(std::to_string(1000 + i)), 1u) << counters.GetDescriptor()->field(i)->name();
  }
}

TEST(MetricsTest, NothingAPeerNamedBecomesALabel) {
  Snapshot busy = snapshot();
  auto& worker = *busy.status.add_workers();
  worker.set_worker("pod-from-outside");
  worker.set_device("device-from-outside");
  worker.set_leases(1);
  EXPECT_THAT(text_of(busy),
              AllOf(Not(HasSubstr("from-outside")), HasSubstr("allot_workers{state=\"busy\"} 1\n")));
}

TEST(MetricsTest, WorkersSilentForLongerThanALeaseCountAsSilent) {
  wire::Status status = snapshot().status;
  for (const auto& [leases, seen] : {std::pair{0, 0}, {2, 1000}, {2, 1001}, {0, 5000}}) {
    auto& worker = *status.add_workers();
    worker.set_leases(leases);
    worker.set_last_seen_ms(seen);
  }
  const WorkerCounts counts = count_workers(status);
  EXPECT_EQ(counts.busy, 1);
  EXPECT_EQ(counts.idle, 1);
  EXPECT_EQ(counts.silent, 2);
}

TEST(MetricsTest, LoadsAreSummedOverTheWorkersThatWereHeardOf) {
  Snapshot told = snapshot();
  EXPECT_THAT(text_of(told), AllOf(HasSubstr("\nallot_workers_output_tokens_per_second 0\n"),
                                   HasSubstr("\nallot_workers_batch_use_ratio 0\n")))
      << "nobody told one";
  const auto add = [&](double busy_seconds, int64_t last_seen_ms) {
    auto& worker = *told.status.add_workers();
    worker.set_last_seen_ms(last_seen_ms);
    wire::WorkerLoad& load = *worker.mutable_load();
    load.set_seconds(10);
    load.set_prompt_tokens(2000);
    load.set_output_tokens(500);
    load.set_busy_seconds(busy_seconds);
    load.set_slot_seconds(busy_seconds / 2);
    load.set_memory_used_bytes(static_cast<int64_t>(busy_seconds) << 30);
    load.set_memory_total_bytes(int64_t{16} << 30);
  };
  add(10, 0);
  add(6, 0);
  add(10, 60'000);  // silent
  told.status.add_workers();
  const std::string text = text_of(told);
  for (const char* line :
       {"\nallot_workers_prompt_tokens_per_second 400\n", "\nallot_workers_output_tokens_per_second 100\n",
        "\nallot_workers_busy_ratio 0.8\n", "\nallot_workers_batch_use_ratio 0.5\n",
        "\nallot_workers_memory_use_ratio 0.625\n"})
    EXPECT_THAT(text, HasSubstr(line));
}

TEST(MetricsTest, BeforeTheHistoryIsReadOnlyTheProcessIsThere) {
  const std::string text = prometheus_text(nullptr, false, "1.0", read_process_figures(), {});
  EXPECT_THAT(text, AllOf(HasSubstr("allot_ready 0\n"), HasSubstr("process_cpu_seconds_total "),
                          Not(HasSubstr("allot_stage"))));
}

TEST(MetricsTest, ProcessFiguresAreOfThisProcess) {
  const ProcessFigures figures = read_process_figures();
  EXPECT_GT(figures.resident_bytes, 1 << 20);
  EXPECT_GT(figures.virtual_bytes, figures.resident_bytes);
  EXPECT_GE(figures.open_files, 3);
  EXPECT_GE(figures.max_files, figures.open_files);
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  EXPECT_LT(figures.start_time, now + 2);
  EXPECT_GT(figures.start_time, now - 3600) << "the test was started within the last hour";
}

TEST(MetricsTest, TimeLeftIsAbsentWhileUnknown) {
  Snapshot unknown = snapshot();
  unknown.status.set_eta_s(-1);
  EXPECT_THAT(text_of(unknown), Not(HasSubstr("allot_eta_seconds")));
  unknown.status.set_eta_s(12);
  EXPECT_THAT(text_of(unknown), HasSubstr("allot_eta_seconds 12\n"));
}

TEST(LiveStateTest, IsReadyFromTheFirstSnapshotUntilItStops) {
  const auto start = std::chrono::steady_clock::now();
  LiveState live("reading", start);
  EXPECT_EQ(live.why_not_ready(), "reading");
  EXPECT_FALSE(live.serving());
  EXPECT_EQ(live.snapshot(), nullptr);
  live.publish(std::make_shared<const Snapshot>(snapshot()));
  EXPECT_EQ(live.why_not_ready(), "");
  EXPECT_TRUE(live.serving());
  EXPECT_EQ(live.snapshot()->status.run_id(), "example");
  live.went_round(start + 5s);
  EXPECT_EQ(live.silence(start + 7s), 2s);
  live.stopping();
  EXPECT_EQ(live.why_not_ready(), "the aggregator is stopping");
  EXPECT_NE(live.snapshot(), nullptr) << "what is known stays";
}

}  // namespace
}  // namespace allot::aggregator
