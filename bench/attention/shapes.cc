#include "bench/attention/shapes.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/philox.h"
#include "kernels/sampling.h"

namespace allot::bench::attention {
namespace {

// What a shape's random numbers are for: the key of their generator.
enum class Purpose : uint32_t { kLength = 1, kBudget = 2 };

// Number `index` of a shape, uniform on [low, high].
int32_t uniform(Purpose purpose, uint32_t index, int32_t low, int32_t high) {
  const PhiloxBlock block = philox4x32_10({{index, 0, 0, 0}}, static_cast<uint32_t>(purpose), 0);
  const auto width = static_cast<uint64_t>(high - low) + 1;
  return low + static_cast<int32_t>((block.word[0] * width) >> 32);
}

std::vector<int32_t> uniforms(Purpose purpose, int32_t count, int32_t low, int32_t high) {
  std::vector<int32_t> numbers;
  for (int32_t i = 0; i < count; ++i) {
    numbers.push_back(uniform(purpose, static_cast<uint32_t>(i), low, high));
  }
  return numbers;
}

Shape equal_lengths(const char* name, int32_t batch, int32_t length, int32_t samples) {
  return {.name = name,
          .batch = batch,
          .shortest = length,
          .longest = length,
          .fewest_samples = samples,
          .most_samples = samples};
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> words;
  while (true) {
    const size_t comma = std::min(text.find(','), text.size());
    words.push_back(text.substr(0, comma));
    if (comma == text.size()) return words;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace

std::vector<Shape> standard_shapes() {
  constexpr int32_t k = 1024;
  std::vector<Shape> shapes = {
      equal_lengths("1x8k", 1, 8 * k, 128),
      equal_lengths("1x32k", 1, 32 * k, 128),
      equal_lengths("1x128k", 1, 128 * k, 128),
      equal_lengths("6x32k", 6, 32 * k, 128),
      equal_lengths("16x32k", 16, 32 * k, 128),
      equal_lengths("64x2k", 64, 2 * k, 8),
      equal_lengths("256x2k", 256, 2 * k, 8),
      equal_lengths("512-ragged", 512, 2 * k, 8),
      equal_lengths("16x32k-s2048", 16, 32 * k, 2048),
      equal_lengths("1x32k-s2048", 1, 32 * k, 2048),
      equal_lengths("6x32k-s2048", 6, 32 * k, 2048),
      equal_lengths("1x32k-28q4kv", 1, 32 * k, 128),
      equal_lengths("1536x672-28q4kv", 1536, 672, 8),
  };
  Shape& ragged = shapes[7];
  ragged.shortest = 64;
  ragged.fewest_samples = 4;
  ragged.most_samples = 12;
  for (Shape* const wide_group :
       {&shapes[11], &shapes[12]}) {  // the heads of Qwen2-7B: seven query heads a KV head
    wide_group->num_q_heads = 28;
    wide_group->num_kv_heads = 4;
  }
  return shapes;
}

std::vector<Shape> select_shapes(std::string_view names) {
  const std::vector<Shape> known = standard_shapes();
  if (names.empty()) return known;
  std::vector<Shape> selected;
  for (const std::string_view name : split(names)) {
    const auto shape = std::ranges::find(known, name, &Shape::name);
    if (shape == known.end()) {
      std::string list;
      for (const Shape& each : known) list += (list.empty() ? "" : ", ") + each.name;
      throw UsageError(fmt::format("--shapes: there is no shape \"{}\"; known are {}", name, list));
    }
    selected.push_back(*shape);
  }
  return selected;
}

std::vector<kernels::Estimator> select_estimators(std::string_view names) {
  std::vector<kernels::Estimator> selected;
  if (names.empty()) {
    for (int i = 0; i < kernels::kEstimators; ++i) selected.push_back(static_cast<kernels::Estimator>(i));
    return selected;
  }
  for (const std::string_view name : split(names)) {
    kernels::Estimator estimator{};
    try {
      estimator = kernels::parse_estimator(name);
    } catch (const InvalidArgument& error) {
      throw UsageError(std::string("--estimators: ") + error.what());
    }
    selected.push_back(estimator);
  }
  return selected;
}

std::vector<KeyFormat> select_key_formats(std::string_view names) {
  std::vector<KeyFormat> selected;
  for (const std::string_view name : split(names)) {
    try {
      selected.push_back(kernels::parse_key_format(name));
    } catch (const InvalidArgument& error) {
      throw UsageError(std::string("--keys: ") + error.what());
    }
  }
  return selected;
}

std::vector<int32_t> lengths_of(const Shape& shape) {
  return uniforms(Purpose::kLength, shape.batch, shape.shortest, shape.longest);
}

std::vector<int32_t> budgets_of(const Shape& shape) {
  return uniforms(Purpose::kBudget, shape.batch, shape.fewest_samples, shape.most_samples);
}

std::string why_unsuitable(const kernels::AttentionMethod& method, const std::vector<int32_t>& lengths,
                           const std::vector<int32_t>& budgets) {
  if (!kernels::has_consistent_unit(method)) return kernels::unit_fault(method);
  for (size_t b = 0; b < lengths.size(); ++b) {
    const int32_t least = kernels::least_samples(method, lengths[b]);
    if (budgets[b] < least) {
      return fmt::format("{} needs a sample a tile: sequence {} has {} keys, {} tiles of {}, and {} samples",
                         kernels::name(method.estimator), b, lengths[b], least, method.tile, budgets[b]);
    }
  }
  return {};
}

int64_t key_bytes(const Shape& shape, const std::vector<int32_t>& lengths, int64_t element_bytes) {
  const int64_t keys = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  return keys * shape.num_kv_heads * shape.head_dim * element_bytes;
}

}  // namespace allot::bench::attention
