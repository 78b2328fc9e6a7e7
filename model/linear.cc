#include "model/linear.h"

#include <ATen/Parallel.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/instructions.h"
#include "base/round_up.h"
#include "model/parallel.h"

namespace allot::model {
namespace {

// How many columns of a product are worth a thread of their own.
constexpr int64_t kMinSharedColumns = 256;
// Columns that oneDNN puts together when it packs a weight: parts end there, so that only the last one is
// padded.
constexpr int64_t kColumnGroup = 64;
// Rows of one call of a packed product, which returns a matrix of its own: one that stays in the cache until
// it is copied, and in the heap between calls.
constexpr int64_t kMaxPackedRows = 256;
// The same without AVX-512. oneDNN's AVX2 code multiplies six rows at a time; where one to three remain, it
// sums them in another order than the others. Up to this many rows are a single block of its own.
constexpr int64_t kMaxPackedRowsWithoutAvx512 = 144;

// LibTorch, oneDNN and MKL keep a number of threads for each calling thread; it is 1, because the loops
// around them are ours.
void use_one_thread() {
  thread_local bool done = false;
  if (!done) at::set_num_threads(1);
  done = true;
}

int64_t max_rows_of_call() {
  return has_avx512() ? kMaxPackedRows : kMaxPackedRowsWithoutAvx512;
}

// Rows of zeros behind those of a call of oneDNN, without which bits of the last ones would depend on how
// many there are.
int64_t rows_added(int64_t rows) {
  return has_avx512() || rows % 6 != 2 ? 0 : 2;
}

at::TensorOptions options_of(kernels::DType dtype) {
  return at::TensorOptions().dtype(dtype == kernels::DType::kFloat32 ? at::kFloat : at::kBFloat16);
}

at::Tensor matrix(const void* data, at::IntArrayRef shape, kernels::DType dtype) {
  return at::from_blob(const_cast<void*>(data), shape, options_of(dtype));
}

// oneDNN's product with a weight in its own order. LibTorch has it as two operators without a header, which
// are found by name; where they are missing, or refuse the processor, the weight stays as it is.
class PackedProduct {
 public:
  // Null where it cannot be had for elements of this type.
  static const PackedProduct* of(at::ScalarType type) {
    static const PackedProduct product;
    static const bool has_float = product.works(at::kFloat);
    static const bool has_bfloat16 = product.works(at::kBFloat16);
    return (type == at::kFloat ? has_float : has_bfloat16) ? &product : nullptr;
  }

  // weight [columns, in_features]
  at::Tensor pack(const at::Tensor& weight) const {
    return call(*pack_, {weight.contiguous(), c10::IValue()});
  }
  // input [rows, in_features] times a packed weight, plus a bias [columns].
  at::Tensor apply(const at::Tensor& input, const at::Tensor& packed,
                   const std::optional<at::Tensor>& bias) const {
    return call(*product_, {input, packed, bias ? c10::IValue(*bias) : c10::IValue(), no_activation_,
                            no_scalars_, no_algorithm_});
  }

 private:
  PackedProduct()
      : pack_(c10::Dispatcher::singleton().findSchema({"mkldnn::_reorder_linear_weight", ""})),
        product_(c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""})) {}

  bool works(at::ScalarType type) const {
    if (!pack_ || !product_) return false;
    try {
      const at::Tensor ones = at::ones({kRowGroup, kRowGroup}, type);
      return apply(ones, pack(ones), std::nullopt).scalar_type() == type;
    } catch (const c10::Error&) {
      return false;
    }
  }

  static at::Tensor call(const c10::OperatorHandle& of, std::vector<c10::IValue> stack) {
    of.callBoxed(&stack);
    return std::move(stack.front()).toTensor();
  }

  std::optional<c10::OperatorHandle> pack_;
  std::optional<c10::OperatorHandle> product_;
  c10::IValue no_activation_ = std::string("none");
  c10::IValue no_scalars_ = c10::List<std::optional<at::Scalar>>();
  c10::IValue no_algorithm_ = std::string();
};

}  // namespace

struct Linear::Tensors {
  // Columns [begin, end) of the product.
  struct Part {
    int64_t begin;
    int64_t end;
    at::Tensor weight;  // packed, or a view [in_features, end - begin]
  };

  std::shared_ptr<const Buffer> weight_memory;  // where it is not packed
  std::shared_ptr<const Buffer> bias_memory;
  std::vector<Part> parts;
  bool packed;
  std::optional<at::Tensor> bias;
  kernels::DType dtype;
  bool widened;
};

Bfloat16Products bfloat16_products() {
#if defined(__x86_64__)
  static const bool has_vectors = has_avx512();
  return has_vectors ? Bfloat16Products::kNative : Bfloat16Products::kWidened;
#else
  return Bfloat16Products::kNative;
#endif
}

kernels::DType Linear::held_dtype(kernels::DType dtype, Bfloat16Products products) {
  const bool widened = dtype == kernels::DType::kBFloat16 && products == Bfloat16Products::kWidened;
  return widened ? kernels::DType::kFloat32 : dtype;
}

Linear::Linear(std::shared_ptr<const Buffer> weight, std::shared_ptr<const Buffer> bias, int64_t out_features,
               int64_t in_features, kernels::DType dtype, int parts, Bfloat16Products products)
    : tensors_(std::make_unique<Tensors>()), out_features_(out_features), in_features_(in_features) {
  const c10::InferenceMode no_autograd;
  use_one_thread();
  at::Tensor whole = matrix(weight->data(), {out_features, in_features}, dtype);
  if (bias) tensors_->bias = matrix(bias->data(), {out_features}, dtype);
  tensors_->dtype = dtype;
  tensors_->widened = held_dtype(dtype, products) != dtype;
  if (tensors_->widened) {
    whole = whole.to(at::kFloat);
    if (tensors_->bias) tensors_->bias = tensors_->bias->to(at::kFloat);
  }
  const PackedProduct* const product = PackedProduct::of(whole.scalar_type());
  tensors_->packed = product != nullptr;
  const int64_t count = std::clamp<int64_t>(out_features / kMinSharedColumns, 1, std::max(parts, 1));
  const int64_t columns = round_up((out_features + count - 1) / count, kColumnGroup);
  for (int64_t begin = 0; begin < out_features; begin += columns) {
    const int64_t end = std::min(begin + columns, out_features);
    const at::Tensor of_part = whole.slice(0, begin, end);
    tensors_->parts.push_back({begin, end, product != nullptr ? product->pack(of_part) : of_part.t()});
  }
  if (tensors_->widened) return;  // the copies are all that is read
  if (product == nullptr) tensors_->weight_memory = std::move(weight);
  tensors_->bias_memory = std::move(bias);
}

Linear::~Linear() = default;
Linear::Linear(Linear&&) noexcept = default;
Linear& Linear::operator=(Linear&&) noexcept = default;

void Linear::apply(const void* input, int64_t rows, void* out, int threads) const {
  if (rows == 0) return;
  run_parallel(static_cast<int64_t>(tensors_->parts.size()), threads,
               [&](int64_t part, int) { apply_part(part, input, rows, out); });
}

void Linear::apply_part(int64_t part, const void* input, int64_t rows, void* out) const {
  const c10::InferenceMode no_autograd;  // per thread
  use_one_thread();
  const auto& [begin, end, weight] = tensors_->parts[static_cast<size_t>(part)];
  const at::Tensor all_rows = matrix(input, {rows, in_features_}, tensors_->dtype);
  const at::Tensor all_results = matrix(out, {rows, out_features_}, tensors_->dtype).slice(1, begin, end);
  std::optional<at::Tensor> bias = tensors_->bias;
  if (bias) bias = bias->slice(0, begin, end);
  const int64_t step = tensors_->packed || tensors_->widened ? max_rows_of_call() : rows;
  for (int64_t first = 0; first < rows; first += step) {
    const int64_t last = std::min(first + step, rows);
    at::Tensor x = all_rows.slice(0, first, last), result = all_results.slice(0, first, last);
    if (tensors_->widened) x = x.to(at::kFloat);
    if (tensors_->packed) {
      const int64_t added = rows_added(last - first);
      if (added > 0) x = at::constant_pad_nd(x, {0, 0, 0, added});
      result.copy_(PackedProduct::of(x.scalar_type())->apply(x, weight, bias).slice(0, 0, last - first));
    } else if (tensors_->widened) {
      result.copy_(bias ? at::addmm(*bias, x, weight) : at::mm(x, weight));
    } else if (bias) {
      at::addmm_out(result, *bias, x, weight);
    } else {
      at::mm_out(result, x, weight);
    }
  }
}

}  // namespace allot::model
