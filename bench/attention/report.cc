#include "bench/attention/report.h"

#include <spdlog/fmt/fmt.h>

#include "base/json.h"

#include "base/quantile.h"
#include "bench/output.h"

namespace allot::bench::attention {
namespace {

constexpr double kGiga = 1e9;
constexpr double kMega = 1e6;
const Table& table() {
  static const Table columns({{"shape", -14},
                              {"kernel", -20},
                              {"samples", 9},
                              {"median us", 11, 1},
                              {"5..95 % us", 18},
                              {"K GB/s", 9},
                              {"K+V GB/s", 10},
                              {"K/read", 8, 2},
                              {"ratio", 8, 2},
                              {"rms err.", 10, 5},
                              {"max rel.", 10, 5},
                              {"  cache", -30}});
  return columns;
}

std::optional<double> times(const std::optional<double>& value, double factor) {
  return value ? std::optional(*value * factor) : std::nullopt;
}

std::string samples_cell(const Row& row) {
  if (row.most_samples == 0) return "-";
  if (row.fewest_samples == row.most_samples) return std::to_string(row.most_samples);
  return fmt::format("{}..{}", row.fewest_samples, row.most_samples);
}

}  // namespace

Spread spread_of(const std::vector<double>& values) {
  return {quantile(values, 0.5), quantile(values, 0.05), quantile(values, 0.95)};
}

std::optional<double> key_rate(const Row& row) {
  if (!row.microseconds) return std::nullopt;
  return static_cast<double>(row.key_bytes) * kMega / row.microseconds->median;
}

std::optional<double> ratio(const Row& row) {
  if (!row.microseconds || !row.best_exact_microseconds) return std::nullopt;
  return *row.best_exact_microseconds / row.microseconds->median;
}

std::string table_head(const Machine& machine, const Conditions& conditions) {
  return fmt::format("{}, driver {}, CUDA runtime {}, torch {}, cuDNN {}, allot {}\n", machine.device,
                     machine.driver, machine.cuda_runtime, machine.torch, machine.cudnn, machine.allot) +
         fmt::format(
             "{}, scores of standard deviation {}; {} MB {} before each run, CUDA graph of one call, {} "
             "warm-ups, median and 5th..95th percentile of {} runs\n",
             conditions.dtype, conditions.score_deviation, conditions.flushed_bytes / 1'000'000,
             conditions.flush == Flush::kUpdate ? "updated" : "read", conditions.warmups, conditions.runs) +
         fmt::format("read bandwidth {:.0f} GB/s; ratio = best exact median of torch / median\n\n",
                     machine.read_bytes_per_second / kGiga) +
         table().head();
}

std::string table_line(const Row& row, const Machine& machine) {
  const std::optional<double> rate = key_rate(row);
  const auto share_of_read =
      machine.read_bytes_per_second > 0 ? times(rate, 1 / machine.read_bytes_per_second) : std::nullopt;
  std::string line =
      table().line({row.shape, row.kernel, samples_cell(row),
                    row.microseconds ? Cell(row.microseconds->median) : Cell("-"),
                    row.microseconds ? span_text(row.microseconds->p5, row.microseconds->p95, 1) : "-",
                    times(rate, 1 / kGiga), times(rate, 2 / kGiga), share_of_read, ratio(row), row.rms_error,
                    row.max_relative_error, "  " + row.cache});
  if (!row.note.empty()) line += fmt::format("{:<14}{}\n", "", row.note);
  return line;
}

std::string row_line(const Row& row, const Machine& machine, const Conditions& conditions) {
  const std::optional<double> rate = key_rate(row);
  const auto microseconds = [&](double Spread::*field) {
    return row.microseconds ? nlohmann::ordered_json((*row.microseconds).*field) : nlohmann::ordered_json();
  };
  const nlohmann::ordered_json json = {
      {"what", "attention"},
      {"shape", row.shape},
      {"batch", row.batch},
      {"shortest", row.shortest},
      {"longest", row.longest},
      {"num_q_heads", row.num_q_heads},
      {"num_kv_heads", row.num_kv_heads},
      {"head_dim", row.head_dim},
      {"fewest_samples", row.fewest_samples},
      {"most_samples", row.most_samples},
      {"dtype", conditions.dtype},
      {"score_deviation", conditions.score_deviation},
      {"engine", row.engine},
      {"kernel", row.kernel},
      {"cache", row.cache},
      {"graph", row.graph},
      {"warmups", conditions.warmups},
      {"runs", conditions.runs},
      {"flushed_bytes", conditions.flushed_bytes},
      {"flush", name(conditions.flush)},
      {"median_us", microseconds(&Spread::median)},
      {"p5_us", microseconds(&Spread::p5)},
      {"p95_us", microseconds(&Spread::p95)},
      {"key_bytes", row.key_bytes},
      {"k_gb_per_s", json_number(times(rate, 1 / kGiga))},
      {"kv_gb_per_s", json_number(times(rate, 2 / kGiga))},
      {"read_gb_per_s", machine.read_bytes_per_second / kGiga},
      {"best_exact",
       row.best_exact.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(row.best_exact)},
      {"best_exact_us", json_number(row.best_exact_microseconds)},
      {"ratio", json_number(ratio(row))},
      {"rms_error", json_number(row.rms_error)},
      {"max_relative_error", json_number(row.max_relative_error)},
      {"note", row.note},
      {"device", machine.device},
      {"driver", machine.driver},
      {"cuda_runtime", machine.cuda_runtime},
      {"torch", machine.torch},
      {"cudnn", machine.cudnn},
      {"version", machine.allot}};
  return json_line(json);
}

}  // namespace allot::bench::attention
