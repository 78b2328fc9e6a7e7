#include "bench/attention/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/json.h"
#include "tests/names.h"

namespace allot::bench::attention {
namespace {

using ::testing::EndsWith;
using ::testing::Not;
using ::testing::StartsWith;

Machine some_machine() {
  return {.device = "NVIDIA H200",
          .driver = "580.1",
          .cuda_runtime = "13.0",
          .torch = "2.11.0",
          .cudnn = "9.1.2",
          .allot = "0.1.0",
          .read_bytes_per_second = 4e12};
}

Conditions some_conditions() {
  return {.dtype = "bfloat16", .score_deviation = 1, .flushed_bytes = 512'000'000, .warmups = 10, .runs = 40};
}

Row some_row() {
  return {.shape = "1x32k",
          .batch = 1,
          .shortest = 32768,
          .longest = 32768,
          .num_q_heads = 32,
          .num_kv_heads = 8,
          .head_dim = 128,
          .fewest_samples = 128,
          .most_samples = 128,
          .engine = "allot",
          .kernel = "sys",
          .cache = "pages of 16, shuffled",
          .key_bytes = 60'000'000,
          .microseconds = Spread{.median = 20, .p5 = 19.5, .p95 = 21.25},
          .rms_error = 0.0884,
          .best_exact_microseconds = 50,
          .best_exact = "cudnn"};
}

TEST(SpreadOf, MedianAndPercentilesLieBetweenValues) {
  const Spread spread = spread_of({4, 1, 3, 2});
  EXPECT_DOUBLE_EQ(spread.median, 2.5);
  EXPECT_DOUBLE_EQ(spread.p5, 1.15);
  EXPECT_DOUBLE_EQ(spread.p95, 3.85);
}

TEST(SpreadOf, OneValueIsEveryPercentile) {
  const Spread spread = spread_of({7});
  EXPECT_EQ(spread.median, 7);
  EXPECT_EQ(spread.p5, 7);
  EXPECT_EQ(spread.p95, 7);
}

TEST(Rates, AreBytesAndBestExactOverTheMedian) {
  EXPECT_DOUBLE_EQ(key_rate(some_row()).value(), 3e12);
  EXPECT_DOUBLE_EQ(ratio(some_row()).value(), 2.5);
}

TEST(Rates, AreMissingWithoutATime) {
  Row row = some_row();
  row.microseconds.reset();
  EXPECT_FALSE(key_rate(row));
  EXPECT_FALSE(ratio(row));
}

TEST(Table, LineHasMedianSpreadRatesAndRatio) {
  const std::string line = table_line(some_row(), some_machine());
  EXPECT_THAT(line, StartsWith("1x32k         sys "));
  EXPECT_THAT(line, Names(128, "20.0", "19.5..21.2", 3000, 6000, "0.75", "2.50", "0.08840"));
  EXPECT_THAT(line, EndsWith("pages of 16, shuffled\n"));
}

TEST(Table, HeadNamesMachineAndProtocol) {
  const std::string head = table_head(some_machine(), some_conditions());
  EXPECT_THAT(
      head,
      StartsWith("NVIDIA H200, driver 580.1, CUDA runtime 13.0, torch 2.11.0, cuDNN 9.1.2, allot 0.1.0\n"));
  EXPECT_THAT(head, Names("512 MB updated before each run", "4000 GB/s"));
  Conditions clean = some_conditions();
  clean.flush = Flush::kRead;
  EXPECT_THAT(table_head(some_machine(), clean), Names("512 MB read before each run"));
}

TEST(Table, RowWithoutATimeHasDashesAndItsReason) {
  Row row = some_row();
  row.microseconds.reset();
  row.fewest_samples = 4;
  row.most_samples = 12;
  row.note = "failed: out of memory";
  const std::string line = table_line(row, some_machine());
  EXPECT_THAT(line, Names("4..12"));
  EXPECT_THAT(line, Not(Names("20.0")));
  EXPECT_THAT(line, EndsWith("failed: out of memory\n"));
}

TEST(Json, HoldsRowMachineAndConditionsOnOneLine) {
  const std::string line = row_line(some_row(), some_machine(), some_conditions());
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json.at("what"), "attention");
  EXPECT_EQ(json.at("median_us"), 20.0);
  EXPECT_EQ(json.at("k_gb_per_s"), 3000.0);
  EXPECT_EQ(json.at("kv_gb_per_s"), 6000.0);
  EXPECT_EQ(json.at("ratio"), 2.5);
  EXPECT_EQ(json.at("best_exact"), "cudnn");
  EXPECT_EQ(json.at("max_relative_error"), nullptr);
  for (const char* key : {"device", "driver", "cuda_runtime", "torch", "cudnn", "version", "dtype", "runs"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
}

TEST(Json, MissingAndNotFiniteNumbersAreNull) {
  Row row = some_row();
  row.microseconds.reset();
  row.rms_error = std::numeric_limits<double>::quiet_NaN();
  const auto json = nlohmann::json::parse(row_line(row, some_machine(), some_conditions()));
  EXPECT_EQ(json.at("median_us"), nullptr);
  EXPECT_EQ(json.at("ratio"), nullptr);
  EXPECT_EQ(json.at("rms_error"), nullptr);
}

}  // namespace
}  // namespace allot::bench::attention
