#include "model/weights_source.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "kernels/bfloat16.h"
#include "kernels/float16.h"

namespace allot::model {
namespace {

// Calls write(i, value) for i in [0, count) with the stored elements from `first` on, as float32.
template <class Write>
void for_each_element(const WeightTensor& tensor, int64_t first, int64_t count, const Write& write) {
  const std::byte* bytes = std::get<std::span<const std::byte>>(tensor.elements).data();
  // The file's bytes need not be aligned for their type.
  const auto half_at = [&](int64_t i) {
    uint16_t bits = 0;
    std::memcpy(&bits, bytes + 2 * (first + i), 2);
    return bits;
  };
  switch (tensor.dtype) {
    case TensorDType::kBF16:
      for (int64_t i = 0; i < count; ++i) write(i, kernels::float_from_bfloat16(half_at(i)));
      return;
    case TensorDType::kF16:
      for (int64_t i = 0; i < count; ++i) write(i, kernels::float_from_float16(half_at(i)));
      return;
    default:
      for (int64_t i = 0; i < count; ++i) {
        float value = 0;
        std::memcpy(&value, bytes + 4 * (first + i), 4);
        write(i, value);
      }
  }
}

// The dtype of a file whose bytes are those of `dtype`.
TensorDType stored_as(kernels::DType dtype) {
  switch (dtype) {
    case kernels::DType::kFloat32:
      return TensorDType::kF32;
    case kernels::DType::kBFloat16:
      return TensorDType::kBF16;
    case kernels::DType::kFloat16:
      break;
  }
  return TensorDType::kF16;
}

// Elements [first, first + count) of the stored bytes to `out`, aligned for `dtype`.
void write_stored(const WeightTensor& tensor, int64_t first, int64_t count, kernels::DType dtype,
                  std::byte* out) {
  auto* floats = reinterpret_cast<float*>(out);
  auto* halves = reinterpret_cast<uint16_t*>(out);
  if (tensor.dtype == stored_as(dtype)) {
    const auto bytes = std::get<std::span<const std::byte>>(tensor.elements);
    std::memcpy(out, bytes.data() + first * kernels::size_of(dtype), count * kernels::size_of(dtype));
    return;
  }
  switch (dtype) {
    case kernels::DType::kFloat32:
      for_each_element(tensor, first, count, [&](int64_t i, float value) { floats[i] = value; });
      return;
    case kernels::DType::kBFloat16:
      for_each_element(tensor, first, count,
                       [&](int64_t i, float value) { halves[i] = kernels::bfloat16_from_float(value); });
      return;
    case kernels::DType::kFloat16:
      for_each_element(tensor, first, count,
                       [&](int64_t i, float value) { halves[i] = kernels::float16_from_float(value); });
  }
}

// What `make` writes into a span of float32, as `dtype`.
template <class Make>
void write_made(int64_t count, kernels::DType dtype, std::byte* out, const Make& make) {
  const auto size = static_cast<size_t>(count);
  if (dtype == kernels::DType::kFloat32) {
    make(std::span(reinterpret_cast<float*>(out), size));
    return;
  }
  const auto wide = std::make_unique_for_overwrite<float[]>(size);
  make(std::span(wide.get(), size));
  auto* halves = reinterpret_cast<uint16_t*>(out);
  if (dtype == kernels::DType::kBFloat16) {
    for (size_t i = 0; i < size; ++i) halves[i] = kernels::bfloat16_from_float(wide[i]);
  } else {
    for (size_t i = 0; i < size; ++i) halves[i] = kernels::float16_from_float(wide[i]);
  }
}

// Elements [first, first + count) of the stored bytes with the tensor's update added, or rounded.
void make_elements(const WeightTensor& tensor, int64_t first, std::span<float> out) {
  write_stored(tensor, first, std::ssize(out), kernels::DType::kFloat32,
               reinterpret_cast<std::byte*>(out.data()));
  if (tensor.update) add_elements(*tensor.update, first, out);
  if (tensor.rounding) tensor.rounding->round(out);
}

// The mean of the absolute values.
float mean_magnitude(const WeightTensor& tensor) {
  double sum = 0;
  for_each_element(tensor, 0, tensor.count(), [&](int64_t, float value) { sum += std::abs(value); });
  return static_cast<float>(sum / static_cast<double>(tensor.count()));
}

// Elements [first, first + count) of `generator` to `out`, aligned for `dtype`.
void generate_elements(const RandomTensor& generator, int64_t first, int64_t count, kernels::DType dtype,
                       std::byte* out) {
  auto* halves = reinterpret_cast<uint16_t*>(out);
  const auto begin = static_cast<uint64_t>(first);
  const auto size = static_cast<size_t>(count);
  if (dtype == kernels::DType::kFloat32) {
    fill_random(generator, begin, {reinterpret_cast<float*>(out), size});
  } else if (dtype == kernels::DType::kBFloat16) {
    fill_random_bfloat16(generator, begin, {halves, size});
  } else {
    std::array<float, 4096> wide;
    for (size_t i = 0; i < size; i += wide.size()) {
      const std::span part(wide.data(), std::min(wide.size(), size - i));
      fill_random(generator, begin + i, part);
      std::ranges::transform(part, halves + i, kernels::float16_from_float);
    }
  }
}

// Elements [first, first + count) of what a tensor is a part of.
void write_whole(const WeightTensor& tensor, int64_t first, int64_t count, kernels::DType dtype,
                 std::byte* out) {
  if (const auto* generator = std::get_if<RandomTensor>(&tensor.elements)) {
    generate_elements(*generator, first, count, dtype, out);
  } else if (const auto* packed = std::get_if<PackedTernary>(&tensor.elements)) {
    write_made(count, dtype, out, [&](std::span<float> to) { unpack(*packed, first, to); });
  } else if (tensor.update || tensor.rounding) {
    write_made(count, dtype, out, [&](std::span<float> to) { make_elements(tensor, first, to); });
  } else {
    write_stored(tensor, first, count, dtype, out);
  }
}

}  // namespace

int64_t WeightTensor::count() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies());
}

WeightTensor rows_of(WeightTensor whole, int64_t first, int64_t count) {
  const int64_t width = whole.count() / whole.shape[0];
  const int64_t elements = std::max<int64_t>(1, count * width);
  whole.part = ElementRuns{.first = first * width, .length = elements, .pitch = elements};
  whole.shape[0] = count;
  return whole;
}

WeightTensor part_of(WeightTensor whole, const ModelSplit& split) {
  if (split.whole()) return whole;
  const auto is_of = [&](std::initializer_list<const char*> names) {
    return std::ranges::any_of(names, [&](const char* name) {
      return whole.name.ends_with(name + std::string(".weight")) ||
             whole.name.ends_with(name + std::string(".bias"));
    });
  };
  if (is_of({"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"})) {
    const int64_t rows = whole.shape[0] / split.ranks;
    return rows_of(std::move(whole), split.rank * rows, rows);
  }
  if (!is_of({"o_proj", "down_proj"})) return whole;
  if (whole.shape.size() == 1) {
    if (split.rank > 0) {
      return {.name = whole.name, .shape = whole.shape, .elements = RandomTensor{.constant = 0}};
    }
    return whole;
  }
  const int64_t pitch = whole.shape[1], columns = pitch / split.ranks;
  whole.part = ElementRuns{.first = split.rank * columns, .length = columns, .pitch = pitch};
  whole.shape[1] = columns;
  return whole;
}

int64_t weight_bytes(const ModelConfig& config, kernels::DType dtype) {
  int64_t elements = 0;
  for (const auto& [name, shape] : decoder_tensor_shapes(config)) {
    elements += std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies());
  }
  return elements * kernels::size_of(dtype);
}

WeightsSource::WeightsSource(std::variant<Checkpoint, uint64_t> origin, const ModelConfig& config,
                             std::optional<Adapter> adapter)
    : origin_(std::move(origin)),
      adapter_(std::move(adapter)),
      ternary_(config.ternary),
      random_deviation_(config.initializer_range),
      shapes_(decoder_tensor_shapes(config)) {}

WeightsSource WeightsSource::checkpoint(const std::filesystem::path& directory, const ModelConfig& config,
                                        std::optional<Adapter> adapter) {
  return {Checkpoint::open(directory), config, std::move(adapter)};
}

WeightsSource WeightsSource::random(uint64_t seed, const ModelConfig& config) {
  return {seed, config, std::nullopt};
}

WeightTensor WeightsSource::at(const std::string& name) const {
  const auto expected = shapes_.find(name);
  if (expected == shapes_.end()) {
    throw InvalidArgument("weights: a decoder of this configuration has no tensor " + name +
                          "; its tensors are those of decoder_tensor_shapes");
  }
  const std::vector<int64_t>& shape = expected->second;
  if (const auto* seed = std::get_if<uint64_t>(&origin_)) {
    const RandomTensor elements = name.ends_with("norm.weight")
                                      ? RandomTensor{.constant = 1}
                                      : random_tensor(*seed, name, random_deviation_);
    return {.name = name, .shape = shape, .dtype = TensorDType::kF32, .elements = elements};
  }
  const bool is_ternary = ternary_ && name.ends_with("_proj.weight");
  if (is_ternary && ternary_ != TernaryWeights::kMaster) return packed(name, shape);
  const TensorView& stored = std::get<Checkpoint>(origin_).at(name);
  if (stored.shape != shape) {
    throw Unsupported("tensor " + name + " has shape " + shape_text(stored.shape) + ", expected " +
                      shape_text(shape) +
                      " from config.json; config.json and weights belong to different models");
  }
  if (stored.dtype != TensorDType::kF32 && stored.dtype != TensorDType::kBF16 &&
      stored.dtype != TensorDType::kF16) {
    throw Unsupported("tensor " + name + " is stored as " + dtype_name(stored.dtype) +
                      ", expected F32, BF16 or F16; convert the checkpoint to one of them");
  }
  WeightTensor tensor{.name = name,
                      .shape = shape,
                      .dtype = stored.dtype,
                      .elements = stored.bytes,
                      .update = adapter_ ? adapter_->update_of(name) : std::nullopt};
  if (is_ternary) tensor.rounding = TernaryRounding(mean_magnitude(tensor));
  return tensor;
}

WeightTensor WeightsSource::packed(const std::string& name, const std::vector<int64_t>& shape) const {
  const auto& checkpoint = std::get<Checkpoint>(origin_);
  const TensorView& stored = checkpoint.at(name);
  const std::vector<int64_t> expected{shape[0] / 4, shape[1]};
  if (stored.dtype != TensorDType::kU8 || stored.shape != expected || shape[0] % 4 != 0) {
    throw Unsupported("tensor " + name + " is stored as " + dtype_name(stored.dtype) + " with shape " +
                      shape_text(stored.shape) + ", expected U8 " + shape_text(expected) + ", four of the " +
                      std::to_string(shape[0]) +
                      " rows that config.json gives in a byte, since its quantization_config says offline");
  }
  if (const size_t place = first_invalid(stored.bytes); place < stored.bytes.size()) {
    throw CorruptFile("tensor " + name + " has the byte " +
                      std::to_string(std::to_integer<int>(stored.bytes[place])) + " at offset " +
                      std::to_string(place) + ", expected ternary weights: 0, 1 or 2 in each pair of bits");
  }
  const TensorView& scale = checkpoint.at(name + "_scale");
  if (scale.dtype != TensorDType::kF32 && scale.dtype != TensorDType::kBF16 &&
      scale.dtype != TensorDType::kF16) {
    throw Unsupported("tensor " + scale.name + " is stored as " + dtype_name(scale.dtype) +
                      ", expected F32, BF16 or F16");
  }
  if (scale.shape != std::vector<int64_t>{1}) {
    throw Unsupported("tensor " + scale.name + " has shape " + shape_text(scale.shape) + ", expected [1]");
  }
  float value = 0;
  write_stored({.name = scale.name, .shape = scale.shape, .dtype = scale.dtype, .elements = scale.bytes}, 0,
               1, kernels::DType::kFloat32, reinterpret_cast<std::byte*>(&value));
  if (ternary_ == TernaryWeights::kPackedOver) value = 1 / value;
  return {.name = name,
          .shape = shape,
          .dtype = scale.dtype,
          .elements = PackedTernary{.bytes = stored.bytes, .scale = value}};
}

void write_elements(const WeightTensor& tensor, int64_t first, int64_t count, kernels::DType dtype,
                    std::byte* out) {
  if (!tensor.part) return write_whole(tensor, first, count, dtype, out);
  // Run by run, each of which is contiguous in the whole.
  for (int64_t i = first; i < first + count;) {
    const int64_t left = tensor.part->length - i % tensor.part->length;
    const int64_t run = std::min(left, first + count - i);
    write_whole(tensor, tensor.part->at(i), run, dtype, out);
    out += run * kernels::size_of(dtype);
    i += run;
  }
}

}  // namespace allot::model
