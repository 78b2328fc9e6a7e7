// Times the row operations and the token sampler on the current GPU: the median time of one call in a CUDA
// graph of many in a row, as they follow each other in a decode step (each starts while its predecessor ends;
// data of up to about 50 MB stays in L2), and the bytes a call must at least move over that time.
//
//     rows_cuda_bench [FILTER]     only lines that contain FILTER
#include <cuda_runtime_api.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "bench/attention/device.h"
#include "bench/attention/stream_timer.h"
#include "bench/output.h"
#include "kernels/attention_cuda.h"
#include "kernels/bfloat16.h"
#include "kernels/rows_cuda.h"
#include "kernels/token_sampler_cuda.h"

namespace allot::bench {
namespace {

using attention::check;
using attention::DeviceBytes;
using attention::to_device;
using kernels::ChooseTokensParams;
using kernels::DeviceLimits;
using kernels::DType;
using kernels::RotaryParams;
using kernels::seen_words;
using kernels::SequenceDraws;
using kernels::TokenRule;

constexpr int kCallsOfGraph = 50;
constexpr int kWarmups = 3;
constexpr int kRuns = 25;

DeviceLimits limits_of_current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "ask for the current device");
  return kernels::device_limits(device);
}

// Normal bfloat16 values; a few million different ones, repeated.
DeviceBytes random_bfloat16(int64_t count, float deviation) {
  constexpr int64_t kDifferent = int64_t{1} << 21;
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<uint16_t> values(static_cast<size_t>(std::min(count, kDifferent)));
  for (uint16_t& value : values) value = kernels::bfloat16_from_float(normal(random));
  DeviceBytes bytes(static_cast<size_t>(count) * sizeof(uint16_t));
  for (int64_t at = 0; at < count; at += kDifferent) {
    check(cudaMemcpy(static_cast<uint16_t*>(bytes.data()) + at, values.data(),
                     static_cast<size_t>(std::min(kDifferent, count - at)) * sizeof(uint16_t),
                     cudaMemcpyHostToDevice),
          "copy random numbers to the device");
  }
  return bytes;
}

// The bits of kSeen tokens of each row, as if a prompt and most of a reply were done.
std::vector<uint32_t> seen_by_a_long_reply(int64_t rows, int32_t vocab_size) {
  constexpr int32_t kSeen = 700;
  std::mt19937 random(2);
  std::uniform_int_distribution<int32_t> id(0, vocab_size - 1);
  std::vector<uint32_t> bits(static_cast<size_t>(rows * seen_words(vocab_size)));
  for (int64_t row = 0; row < rows; ++row) {
    for (int32_t i = 0; i < kSeen; ++i) {
      const int32_t seen = id(random);
      bits[static_cast<size_t>(row * seen_words(vocab_size) + seen / 32)] |= 1u << (seen % 32);
    }
  }
  return bits;
}

class Bench {
 public:
  explicit Bench(std::string filter) : filter_(std::move(filter)), limits_(limits_of_current_device()) {
    fmt::print("{}", table_.head());
  }

  void norms(int64_t rows, int32_t width) {
    if (!wanted(fmt::format("rms_norm with residual {} x {}", rows, width))) return;
    const DeviceBytes input = random_bfloat16(rows * width, 1), residual = random_bfloat16(rows * width, 1),
                      weight = random_bfloat16(width, 1), out(input.size());
    time(4.0 * 2 * static_cast<double>(rows * width), [&] {
      rms_norm_cuda({.rows = rows,
                     .width = width,
                     .dtype = DType::kBFloat16,
                     .epsilon = 1e-6f,
                     .input = input.data(),
                     .residual = residual.data(),
                     .weight = weight.data(),
                     .out = out.data()},
                    limits_, timer_.stream());
    });
  }

  void silu(int64_t rows, int32_t width) {
    if (!wanted(fmt::format("activate_and_multiply {} x {}", rows, width))) return;
    const DeviceBytes gate_up = random_bfloat16(2 * rows * width, 1), out(gate_up.size() / 2);
    time(3.0 * 2 * static_cast<double>(rows * width), [&] {
      activate_and_multiply_cuda({.rows = rows,
                                  .width = width,
                                  .dtype = DType::kBFloat16,
                                  .gate_up = gate_up.data(),
                                  .out = out.data()},
                                 limits_, timer_.stream());
    });
  }

  void gather(int64_t rows, int32_t width) {
    if (!wanted(fmt::format("gather_embeddings {} x {}", rows, width))) return;
    constexpr int64_t kVocab = 32'000;
    const DeviceBytes table = random_bfloat16(kVocab * width, 1), out(static_cast<size_t>(2 * rows * width));
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < rows; ++i) ids.push_back(static_cast<int32_t>(i * 7919 % kVocab));
    const DeviceBytes device_ids = to_device(std::span<const int32_t>(ids));
    time(2.0 * 2 * static_cast<double>(rows * width), [&] {
      gather_embeddings_cuda({.tokens = rows,
                              .width = width,
                              .vocab_size = kVocab,
                              .dtype = DType::kBFloat16,
                              .table = table.data(),
                              .ids = static_cast<const int32_t*>(device_ids.data()),
                              .out = out.data()},
                             limits_, timer_.stream());
    });
  }

  void rotary(int64_t tokens, int32_t num_q_heads, int32_t num_kv_heads, bool with_norm) {
    constexpr int32_t kHeadDim = 128, kPage = 16, kTable = 4096;
    if (!wanted(fmt::format("rotate_and_store {} x {}/{} heads{}", tokens, num_q_heads, num_kv_heads,
                            with_norm ? " with norms" : ""))) {
      return;
    }
    const int64_t width = int64_t{num_q_heads + 2 * num_kv_heads} * kHeadDim;
    const int64_t pages = (tokens + kPage - 1) / kPage;
    const DeviceBytes qkv = random_bfloat16(tokens * width, 1), bias = random_bfloat16(width, 1),
                      norm = random_bfloat16(kHeadDim, 1),
                      keys(static_cast<size_t>(2 * pages * kPage * num_kv_heads * kHeadDim)),
                      values(keys.size()), angles(sizeof(float) * kTable * kHeadDim / 2);
    check(cudaMemset(angles.data(), 0, angles.size()), "clear the tables");
    std::vector<int32_t> positions;
    std::vector<int64_t> slots;
    for (int64_t i = 0; i < tokens; ++i) {
      positions.push_back(static_cast<int32_t>(i * 31 % kTable));
      slots.push_back(i);
    }
    const DeviceBytes device_positions = to_device(std::span<const int32_t>(positions)),
                      device_slots = to_device(std::span<const int64_t>(slots));
    RotaryParams p;
    p.tokens = tokens;
    p.num_q_heads = num_q_heads;
    p.num_kv_heads = num_kv_heads;
    p.head_dim = kHeadDim;
    p.dtype = DType::kBFloat16;
    p.qkv = qkv.data();
    p.qkv_stride = width;
    p.bias = with_norm ? nullptr : bias.data();
    p.q_norm = p.k_norm = with_norm ? norm.data() : nullptr;
    p.norm_epsilon = 1e-6f;
    p.cos = p.sin = static_cast<const float*>(angles.data());
    p.table_rows = kTable;
    p.positions = static_cast<const int32_t*>(device_positions.data());
    p.key_pages = keys.data();
    p.value_pages = values.data();
    p.num_pages = pages;
    p.page_size = kPage;
    p.slots = static_cast<const int64_t*>(device_slots.data());
    time(2.0 * 2 * static_cast<double>(tokens * width),
         [&] { rotate_and_store_cuda(p, limits_, timer_.stream()); });
  }

  // Logits of a random model have a deviation of about 1.3, and most of the vocabulary takes part; those of a
  // trained one fall off so steeply that few tokens do.
  void choice(int64_t rows, int32_t vocab_size, const TokenRule& rule, float deviation) {
    const std::string how = rule.temperature == 0
                                ? std::string("greedy")
                                : fmt::format("t {} p {} r {} s {}", rule.temperature, rule.top_p,
                                              rule.repetition_penalty, deviation);
    if (!wanted(fmt::format("choose_tokens {} x {} {}", rows, vocab_size, how))) return;
    const int64_t stride = (int64_t{vocab_size} + 7) / 8 * 8;
    const DeviceBytes logits = random_bfloat16(rows * stride, deviation),
                      seen = to_device(std::span<const uint32_t>(seen_by_a_long_reply(rows, vocab_size))),
                      chosen(static_cast<size_t>(rows) * sizeof(int32_t)), fault(sizeof(int32_t));
    const std::vector<TokenRule> rules(static_cast<size_t>(rows), rule);
    std::vector<SequenceDraws> draws;
    std::vector<int32_t> positions;
    for (int64_t i = 0; i < rows; ++i) {
      draws.push_back({.key = {1, 2}, .question = static_cast<uint32_t>(i)});
      positions.push_back(static_cast<int32_t>(i));
    }
    const DeviceBytes device_rules = to_device(std::span<const TokenRule>(rules)),
                      device_draws = to_device(std::span<const SequenceDraws>(draws)),
                      device_positions = to_device(std::span<const int32_t>(positions));
    const ChooseTokensParams p{.rows = rows,
                               .vocab_size = vocab_size,
                               .dtype = DType::kBFloat16,
                               .logits = logits.data(),
                               .logits_stride = stride,
                               .rules = static_cast<const TokenRule*>(device_rules.data()),
                               .draws = static_cast<const SequenceDraws*>(device_draws.data()),
                               .positions = static_cast<const int32_t*>(device_positions.data()),
                               .seen = static_cast<uint32_t*>(seen.data()),
                               .seen_rows = rows,
                               .chosen = static_cast<int32_t*>(chosen.data()),
                               .fault = static_cast<int32_t*>(fault.data())};
    time(2.0 * static_cast<double>(rows * vocab_size),
         [&] { choose_tokens_cuda(p, limits_, timer_.stream()); });
  }

 private:
  bool wanted(std::string name) {
    name_ = std::move(name);
    return name_.find(filter_) != std::string::npos;
  }

  // Prints the line of the last wanted() call.
  void time(double bytes, const std::function<void()>& queue) {
    const WarmTimes times = timer_.time_in_graph(name_, kCallsOfGraph, [&](int64_t) { queue(); });
    fmt::print("{}", table_.line({name_, times.median, times.least, times.most, bytes / times.median / 1e3}));
    std::fflush(stdout);
  }

  std::string filter_;
  DeviceLimits limits_;
  std::string name_;
  StreamTimer timer_{kWarmups, kRuns};
  const Table table_{
      {{"call", -52}, {"median us", 10, 2}, {"least us", 10, 2}, {"most us", 10, 2}, {"GB/s", 9}}};
};

void run(const std::string& filter) {
  Bench bench(filter);
  for (const int64_t rows : {1, 6, 64, 512}) {
    for (const int32_t width : {3584, 4096}) bench.norms(rows, width);
    for (const int32_t width : {14336, 18944}) bench.silu(rows, width);
    bench.gather(rows, 4096);
    bench.rotary(rows, 32, 8, false);
    bench.rotary(rows, 28, 4, false);
    bench.rotary(rows, 32, 8, true);
  }
  const TokenRule paper{.temperature = 0.6f, .top_p = 0.95f, .active = 1};
  for (const auto& [rows, vocab_size] : std::initializer_list<std::pair<int64_t, int32_t>>{{1, 128256},
                                                                                           {6, 128256},
                                                                                           {1, 152064},
                                                                                           {6, 152064},
                                                                                           {16, 152064},
                                                                                           {64, 152064},
                                                                                           {160, 152064},
                                                                                           {512, 152064},
                                                                                           {1536, 152064}}) {
    bench.choice(rows, vocab_size, {.active = 1}, 1.3f);
    bench.choice(rows, vocab_size, {.temperature = 1, .active = 1}, 1.3f);
    bench.choice(rows, vocab_size, paper, 1.3f);
    bench.choice(rows, vocab_size, paper, 4);
    bench.choice(rows, vocab_size,
                 {.temperature = 0.6f, .top_p = 0.95f, .repetition_penalty = 1.1f, .active = 1}, 1.3f);
  }
}

}  // namespace
}  // namespace allot::bench

int main(int argc, char** argv) {
  try {
    allot::bench::run(argc > 1 ? argv[1] : "");
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "rows_cuda_bench: {}\n", error.what());
    return 1;
  }
}
