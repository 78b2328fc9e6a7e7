#include "bench/attention/report.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace allot::bench::attention {
namespace {

constexpr double kGiga = 1e9;
constexpr double kMega = 1e6;
constexpr const char* kColumns = "{:<14}{:<20}{:>9}{:>11}{:>18}{:>9}{:>10}{:>8}{:>8}{:>10}{:>10}  {}\n";

double percentile(const std::vector<double>& sorted, double fraction) {
  const double place = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - std::floor(place)) * (sorted[above] - sorted[below]);
}

// An empty cell is a dash.
std::string cell(const std::optional<double>& value, const char* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : "-";
}

std::optional<double> times(const std::optional<double>& value, double factor) {
  return value ? std::optional(*value * factor) : std::nullopt;
}

std::string samples_cell(const Row& row) {
  if (row.most_samples == 0) return "-";
  if (row.fewest_samples == row.most_samples) return std::to_string(row.most_samples);
  return fmt::format("{}..{}", row.fewest_samples, row.most_samples);
}

nlohmann::ordered_json json_value(const std::optional<double>& value) {
  // JSON has no NaN; an output that is not finite is said in the note.
  return value && std::isfinite(*value) ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  std::ranges::sort(values);
  return {percentile(values, 0.5), percentile(values, 0.05), percentile(values, 0.95)};
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
             "{}, scores of standard deviation {}; {} MB touched before each run, CUDA graph of one call, {} "
             "warm-ups, "
             "median and 5th..95th percentile of {} runs\n",
             conditions.dtype, conditions.score_deviation, conditions.flushed_bytes / 1'000'000,
             conditions.warmups, conditions.runs) +
         fmt::format("read bandwidth {:.0f} GB/s; ratio = best exact median of torch / median\n\n",
                     machine.read_bytes_per_second / kGiga) +
         fmt::format(fmt::runtime(kColumns), "shape", "kernel", "samples", "median us", "5..95 % us",
                     "K GB/s", "K+V GB/s", "K/read", "ratio", "rms err.", "max rel.", "cache");
}

std::string table_line(const Row& row, const Machine& machine) {
  const std::optional<double> rate = key_rate(row);
  const std::string spread =
      row.microseconds ? fmt::format("{:.1f}..{:.1f}", row.microseconds->p5, row.microseconds->p95) : "-";
  std::string line = fmt::format(
      fmt::runtime(kColumns), row.shape, row.kernel, samples_cell(row),
      row.microseconds ? fmt::format("{:.1f}", row.microseconds->median) : "-", spread,
      cell(times(rate, 1 / kGiga), "{:.0f}"), cell(times(rate, 2 / kGiga), "{:.0f}"),
      cell(machine.read_bytes_per_second > 0 ? times(rate, 1 / machine.read_bytes_per_second) : std::nullopt,
           "{:.2f}"),
      cell(ratio(row), "{:.2f}"), cell(row.rms_error, "{:.5f}"), cell(row.max_relative_error, "{:.5f}"),
      row.cache);
  if (!row.note.empty()) line += fmt::format("{:<14}{}\n", "", row.note);
  return line;
}

std::string json_line(const Row& row, const Machine& machine, const Conditions& conditions) {
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
      {"median_us", microseconds(&Spread::median)},
      {"p5_us", microseconds(&Spread::p5)},
      {"p95_us", microseconds(&Spread::p95)},
      {"key_bytes", row.key_bytes},
      {"k_gb_per_s", json_value(times(rate, 1 / kGiga))},
      {"kv_gb_per_s", json_value(times(rate, 2 / kGiga))},
      {"read_gb_per_s", machine.read_bytes_per_second / kGiga},
      {"best_exact",
       row.best_exact.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(row.best_exact)},
      {"best_exact_us", json_value(row.best_exact_microseconds)},
      {"ratio", json_value(ratio(row))},
      {"rms_error", json_value(row.rms_error)},
      {"max_relative_error", json_value(row.max_relative_error)},
      {"note", row.note},
      {"device", machine.device},
      {"driver", machine.driver},
      {"cuda_runtime", machine.cuda_runtime},
      {"torch", machine.torch},
      {"cudnn", machine.cudnn},
      {"version", machine.allot}};
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace allot::bench::attention
