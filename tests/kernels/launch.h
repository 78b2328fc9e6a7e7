// Launches for tests: random queries and caches whose every byte that attention must not touch is poisoned.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cpu/launch.h"

namespace allot::kernels::testing {

struct Sequence {
  int32_t queries = 1;
  int32_t length = 1;
  int32_t budget = kDenseBudget;
};

struct LaunchSpec {
  std::vector<Sequence> sequences = {};
  int32_t num_q_heads = 2;
  int32_t num_kv_heads = 2;
  int32_t head_dim = 32;
  int32_t page_size = 16;
  DType dtype = DType::kFloat32;
  Estimator estimator = Estimator::kExact;
  double score_deviation = 1.5;  // standard deviation of the scores: above 3 a row is peaked
  uint32_t seed = 1;             // of the data
  uint32_t page_seed = 1;        // of the physical page order
  // Heads of the layer that are elsewhere, before the first of the launch: draws have the layer's numbers.
  int32_t kv_heads_before = 3;
  bool repeat_first =
      false;  // every sequence reads the pages and queries of the first: one row under many seeds
};

// Elements of one dtype.
class Elements {
 public:
  Elements() = default;
  Elements(DType dtype, int64_t count, float value);
  Elements(DType dtype, std::vector<unsigned char> bytes) : dtype_(dtype), bytes_(std::move(bytes)) {}
  int64_t count() const { return static_cast<int64_t>(bytes_.size()) / size_of(dtype_); }
  float get(int64_t index) const;
  void set(int64_t index, float value);
  void* data() { return bytes_.data(); }
  const std::vector<unsigned char>& bytes() const { return bytes_; }

 private:
  DType dtype_ = DType::kFloat32;
  std::vector<unsigned char> bytes_;
};

// Normally distributed around 0.
Elements random_elements(DType dtype, int64_t count, uint32_t seed, float deviation = 1);

// Owns the memory of a launch. Slots beyond each length, pages of no sequence and the query's stride gap hold
// NaN; guard elements lie before and after the output.
class Launch {
 public:
  explicit Launch(const LaunchSpec& spec);
  Launch(const Launch&) = delete;

  AttentionParams params;
  std::vector<int32_t> budgets;
  std::vector<SequenceDraws> draws;
  // Norms of the values that the launch was made with, NaN elsewhere; set_value() leaves them as they are.
  std::vector<float> value_norms;

  // Cached key or value element of a sequence's token.
  void set_key(int64_t sequence, int32_t kv_head, int32_t token, int32_t i, float x);
  void set_value(int64_t sequence, int32_t kv_head, int32_t token, int32_t i, float x);
  void set_query(int64_t query, int32_t head, int32_t i, float x);
  // Gives all values lengths that differ by a factor of up to 150, in value_norms, too.
  void stretch_values();
  // Splits keys and queries as they are now (kernels/split_keys.h); params then use them.
  void split_keys(bool with_low_plane = true);
  // Bytes of the arrays that params.split points to.
  struct SplitBytes {
    size_t high = 0, low = 0, query = 0, query_units = 0;
  };
  static SplitBytes split_bytes(const AttentionParams& params, int64_t num_queries);
  // Makes sequence `target` that of `from`'s sequence `source`: budget, draws, the keys and values that both
  // lengths cover, and the queries from the last one backwards.
  void copy_sequence(const Launch& from, int64_t source, int64_t target);

  // Runs the launch with an instruction set and returns the output as double [num_queries, num_q_heads,
  // head_dim]; fails the test when a guard element changed.
  std::vector<double> run(cpu::Isa isa, int num_threads = 1);
  // The exact bytes of the output of the last run.
  std::vector<unsigned char> output_bytes() const;

  int64_t num_queries() const { return query_starts_.back(); }
  int64_t num_rows() const { return num_queries() * params.num_q_heads; }
  // Weight of every key in every row [rows][longest length]: runs the launch with one-hot values, head_dim
  // keys at a time. `run` attends with the launch's params and returns the output as run(isa) does.
  std::vector<std::vector<double>> key_weights(const std::function<std::vector<double>()>& run);
  std::vector<std::vector<double>> key_weights(cpu::Isa isa);

 private:
  int64_t slot_index(int64_t sequence, int32_t kv_head, int32_t token, int32_t i) const;

  LaunchSpec spec_;
  Elements query_, key_pages_, value_pages_, out_;
  std::vector<unsigned char> split_high_;
  std::vector<int8_t> split_low_, split_query_;
  std::vector<float> split_query_units_;
  std::vector<int32_t> page_table_;
  std::vector<int64_t> query_starts_;
  std::vector<int32_t> lengths_;
};

// Instruction sets of this machine, the portable one first.
std::vector<cpu::Isa> supported_isas();

// body(isa, dtype) for each of them, with the dtypes of rows.
template <class Body>
void for_every_kind(const Body& body) {
  for (const cpu::Isa isa : supported_isas()) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      SCOPED_TRACE(std::string(cpu::name(isa)) + " " + std::string(name(dtype)));
      body(isa, dtype);
    }
  }
}

// Mean of vectors with the standard error of each element.
class MeanEstimate {
 public:
  explicit MeanEstimate(size_t size) : sum_(size, 0.0), squares_(size, 0.0) {}
  void add(const double* sample);
  int64_t count() const { return count_; }
  double mean(size_t i) const { return sum_[i] / static_cast<double>(count_); }
  double standard_error(size_t i) const;
  // Largest |mean - expected| in standard errors, none taken below `least_error`: elements whose samples do
  // not vary must match to about that.
  double largest_z(const std::vector<double>& expected, double least_error = 1e-5) const;

 private:
  int64_t count_ = 0;
  std::vector<double> sum_, squares_;
};

}  // namespace allot::kernels::testing
