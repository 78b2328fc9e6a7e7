#include "model/merged_checkpoint.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "model/adapter.h"
#include "model/model_config.h"
#include "model/safetensors_writer.h"
#include "model/tensor_shapes.h"
#include "model/weights_source.h"

namespace allot::model {
namespace {

constexpr int64_t kPieceElements = int64_t{1} << 20;

// The dtype of elements that a file stores as `dtype`, which is one that WeightsSource takes.
kernels::DType element_dtype(TensorDType dtype) {
  switch (dtype) {
    case TensorDType::kBF16:
      return kernels::DType::kBFloat16;
    case TensorDType::kF16:
      return kernels::DType::kFloat16;
    default:
      return kernels::DType::kFloat32;
  }
}

}  // namespace

void write_merged_checkpoint(const std::filesystem::path& model, const std::filesystem::path& adapter,
                             const std::filesystem::path& out) {
  const ModelConfig config = read_model_config(model);
  const WeightsSource source = WeightsSource::checkpoint(model, config, Adapter::open(adapter, config));
  std::vector<WeightTensor> tensors;
  std::vector<TensorHeader> headers;
  for (const auto& [name, shape] : decoder_tensor_shapes(config)) {
    const WeightTensor& tensor = tensors.emplace_back(source.at(name));
    headers.push_back({.name = name, .dtype = tensor.dtype, .shape = shape});
  }
  SafetensorsWriter writer(out, headers);
  // Aligned for every dtype, as new[] aligns.
  const auto piece = std::make_unique_for_overwrite<std::byte[]>(kPieceElements * sizeof(float));
  for (const WeightTensor& tensor : tensors) {
    const kernels::DType dtype = element_dtype(tensor.dtype);
    for (int64_t first = 0; first < tensor.count(); first += kPieceElements) {
      const int64_t count = std::min(kPieceElements, tensor.count() - first);
      write_elements(tensor, first, count, dtype, piece.get());
      writer.write({piece.get(), static_cast<size_t>(count * kernels::size_of(dtype))});
    }
  }
  writer.finish();
}

}  // namespace allot::model
