// CPU attention, one launch at a time: the shapes of the embedded model's and of SmolLM2-135M's decode step
// and prefill chunk, every estimator against exact attention. Each launch walks its own copy of the caches,
// more bytes in all than the L2 cache holds, as the layers of a model do. Counters: flop/s of what exact
// attention would compute, bytes/s of the keys and values it reads.
//
//   attention_cpu_bench --benchmark_filter=decode --benchmark_repetitions=5
//   --benchmark_enable_random_interleaving
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "kernels/bfloat16.h"
#include "kernels/cpu/launch.h"

namespace allot::kernels {
namespace {

struct Heads {
  int32_t queries;
  int32_t kv;
  int32_t dim;
};
constexpr Heads kEmbedded{8, 4, 32};
constexpr Heads kSmolLm2{9, 3, 64};

struct Shape {
  Heads heads;
  int32_t sequences;
  int32_t queries;  // per sequence: 1 = decode
  int32_t keys;     // per sequence
};

constexpr int32_t kPageSize = 16;
constexpr int32_t kLayers = 8;

// Normal numbers; a block of them repeats, which keeps the set-up short and changes nothing for attention.
template <class T>
std::vector<T> random_elements(int64_t count, uint32_t seed) {
  constexpr int64_t kBlock = 1 << 16;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<T> elements(static_cast<size_t>(count));
  for (int64_t i = 0; i < std::min(count, kBlock); ++i) {
    if constexpr (sizeof(T) == 4) {
      elements[i] = normal(random);
    } else {
      elements[i] = bfloat16_from_float(normal(random));
    }
  }
  for (int64_t i = kBlock; i < count; ++i) elements[i] = elements[i - kBlock];
  return elements;
}

template <class T>
void attention(benchmark::State& state, Shape shape, Estimator estimator, int32_t budget, cpu::Isa isa) {
  const int32_t pages_each = (shape.keys + kPageSize - 1) / kPageSize;
  const int64_t pages = int64_t{pages_each} * shape.sequences;
  const Heads& heads = shape.heads;
  const int64_t cache_elements = pages * heads.kv * kPageSize * heads.dim;
  const int64_t queries = int64_t{shape.sequences} * shape.queries;
  std::vector<std::vector<T>> keys, values;
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    keys.push_back(random_elements<T>(cache_elements, 2 * layer));
    values.push_back(random_elements<T>(cache_elements, 2 * layer + 1));
  }
  std::vector<float> norms = random_elements<float>(pages * heads.kv * kPageSize, 98);
  for (float& norm : norms) norm = 0.1f + std::abs(norm);
  const auto query = random_elements<T>(queries * heads.queries * heads.dim, 99);
  std::vector<T> out(query.size());
  std::vector<int32_t> table;
  for (int32_t page = 0; page < pages; ++page) table.push_back(page);
  std::vector<int64_t> starts;
  for (int32_t b = 0; b <= shape.sequences; ++b) starts.push_back(int64_t{b} * shape.queries);
  const std::vector<int32_t> lengths(shape.sequences, shape.keys);
  const std::vector<int32_t> budgets(shape.sequences, budget);
  const std::vector<SequenceDraws> draws(shape.sequences, {{1, 2}, 3});

  AttentionParams p;
  p.batch = shape.sequences;
  p.num_q_heads = heads.queries;
  p.num_kv_heads = heads.kv;
  p.head_dim = heads.dim;
  p.page_size = kPageSize;
  p.max_pages = pages_each;
  p.num_pages = pages;
  p.dtype = sizeof(T) == 4 ? DType::kFloat32 : DType::kBFloat16;
  p.scale = 1 / std::sqrt(static_cast<float>(heads.dim));
  p.query = query.data();
  p.query_stride = heads.queries * heads.dim;
  p.page_table = table.data();
  p.query_start = starts.data();
  p.lengths = lengths.data();
  p.out = out.data();
  p.method = usual_method();
  p.method.estimator = estimator;
  p.value_norms = norms.data();
  p.budgets = budgets.data();
  p.draws = draws.data();

  const auto threads = static_cast<int>(state.range(0));
  uint32_t layer = 0;
  for (auto _ : state) {
    layer = (layer + 1) % kLayers;
    p.layer = layer;
    p.key_pages = keys[layer].data();
    p.value_pages = values[layer].data();
    cpu::attend(p, threads, isa);
  }
  const double visible = shape.keys - (shape.queries - 1) / 2.0;  // on average, causal
  const double flops = 4.0 * heads.dim * heads.queries * static_cast<double>(queries) * visible;
  const double bytes = 2.0 * sizeof(T) * heads.dim * heads.kv * shape.sequences * shape.keys;
  using benchmark::Counter;
  state.counters["flop/s"] = Counter(flops, Counter::kIsIterationInvariantRate);
  state.counters["KV_bytes/s"] = Counter(bytes, Counter::kIsIterationInvariantRate, Counter::kIs1024);
}

template <class T>
void add(const std::string& shape_name, Shape shape, Estimator estimator, int32_t budget, cpu::Isa isa,
         int threads) {
  const std::string label = shape_name + (sizeof(T) == 4 ? "/float32/" : "/bfloat16/") +
                            std::string(name(estimator)) + "/" + cpu::name(isa) + "/threads";
  benchmark::RegisterBenchmark(label.c_str(), attention<T>, shape, estimator, budget, isa)
      ->Arg(threads)
      ->MeasureProcessCPUTime()
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}

void add_all() {
  constexpr int32_t kBudget = 8;
  const std::pair<const char*, Shape> shapes[] = {{"decode_128x250", {kEmbedded, 128, 1, 250}},
                                                  {"prefill_9x230", {kEmbedded, 9, 230, 230}},
                                                  {"smollm2_decode_32x160", {kSmolLm2, 32, 1, 160}},
                                                  {"smollm2_prefill_8x128", {kSmolLm2, 8, 128, 128}},
                                                  {"smollm2_prefill_1x2048", {kSmolLm2, 1, 2048, 2048}}};
  for (const auto& [shape_name, shape] : shapes) {
    for (const cpu::Isa isa : {cpu::Isa::kPortable, cpu::Isa::kAvx2, cpu::Isa::kAvx512, cpu::Isa::kAmx}) {
      if (isa > cpu::best_isa()) continue;
      for (int number = 0; number < kEstimators; ++number) {
        const auto estimator = static_cast<Estimator>(number);
        const bool usual = estimator == Estimator::kExact || estimator == Estimator::kSys ||
                           estimator == Estimator::kThreshold || estimator == Estimator::kJoint;
        if (isa != cpu::best_isa() && !usual) continue;
        for (const int threads : {1, 2}) {
          if (threads == 1 && !usual) continue;
          add<float>(shape_name, shape, estimator, kBudget, isa, threads);
          add<uint16_t>(shape_name, shape, estimator, kBudget, isa, threads);
        }
      }
    }
  }
}

}  // namespace
}  // namespace allot::kernels

int main(int argc, char** argv) {
  allot::kernels::add_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
