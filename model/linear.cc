#include "model/linear.h"

#include <ATen/Parallel.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/addmm.h>
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
#include "kernels/product.h"
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

// LibTorch, oneDNN and MKL keep a number of threads for each calling thread; it is 1, because the loops
// around them are ours.
void use_one_thread() {
  thread_local bool done = false;
  if (!done) at::set_num_threads(1);
  done = true;
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

Products products_for(kernels::DType dtype) {
#if defined(__x86_64__)
  const bool by_tiles = dtype == kernels::DType::kBFloat16 && has_amx();
  return has_avx512() && !by_tiles ? Products::kLibrary : Products::kOwn;
#else
  return Products::kLibrary;
#endif
}

class Linear::Product {
 public:
  virtual ~Product() = default;
  virtual void apply(const void* input, int64_t rows, void* out, int threads) const = 0;
};

class Linear::LibraryProduct final : public Product {
 public:
  LibraryProduct(std::shared_ptr<const Buffer> weight, std::shared_ptr<const Buffer> bias,
                 int64_t out_features, int64_t in_features, kernels::DType dtype, int parts)
      : out_features_(out_features), in_features_(in_features), dtype_(dtype) {
    const c10::InferenceMode no_autograd;
    use_one_thread();
    const at::Tensor whole = matrix(weight->data(), {out_features, in_features}, dtype);
    if (bias) bias_ = matrix(bias->data(), {out_features}, dtype);
    product_ = PackedProduct::of(whole.scalar_type());
    const int64_t count = std::clamp<int64_t>(out_features / kMinSharedColumns, 1, std::max(parts, 1));
    const int64_t columns = round_up((out_features + count - 1) / count, kColumnGroup);
    for (int64_t begin = 0; begin < out_features; begin += columns) {
      const int64_t end = std::min(begin + columns, out_features);
      const at::Tensor of_part = whole.slice(0, begin, end);
      parts_.push_back({begin, end, product_ != nullptr ? product_->pack(of_part) : of_part.t()});
    }
    if (product_ == nullptr) weight_memory_ = std::move(weight);
    bias_memory_ = std::move(bias);
  }

  void apply(const void* input, int64_t rows, void* out, int threads) const override {
    run_parallel(static_cast<int64_t>(parts_.size()), threads,
                 [&](int64_t part, int) { apply_part(parts_[part], input, round_up(rows, kRowGroup), out); });
  }

 private:
  // Columns [begin, end) of the product.
  struct Part {
    int64_t begin;
    int64_t end;
    at::Tensor weight;  // packed, or a view [in_features, end - begin]
  };

  void apply_part(const Part& part, const void* input, int64_t rows, void* out) const {
    const c10::InferenceMode no_autograd;  // per thread
    use_one_thread();
    const at::Tensor all_rows = matrix(input, {rows, in_features_}, dtype_);
    const at::Tensor all_results = matrix(out, {rows, out_features_}, dtype_).slice(1, part.begin, part.end);
    std::optional<at::Tensor> bias = bias_;
    if (bias) bias = bias->slice(0, part.begin, part.end);
    const int64_t step = product_ != nullptr ? kMaxPackedRows : rows;
    for (int64_t first = 0; first < rows; first += step) {
      const int64_t last = std::min(first + step, rows);
      const at::Tensor x = all_rows.slice(0, first, last);
      at::Tensor result = all_results.slice(0, first, last);
      if (product_ != nullptr) {
        result.copy_(product_->apply(x, part.weight, bias));
      } else if (bias) {
        at::addmm_out(result, *bias, x, part.weight);
      } else {
        at::mm_out(result, x, part.weight);
      }
    }
  }

  int64_t out_features_;
  int64_t in_features_;
  kernels::DType dtype_;
  const PackedProduct* product_;                 // null where the weight is not packed
  std::shared_ptr<const Buffer> weight_memory_;  // then
  std::shared_ptr<const Buffer> bias_memory_;
  std::optional<at::Tensor> bias_;
  std::vector<Part> parts_;
};

class Linear::OwnProduct final : public Product {
 public:
  OwnProduct(const Buffer& weight, std::shared_ptr<const Buffer> bias, int64_t out_features,
             int64_t in_features, kernels::DType dtype, int threads)
      : bias_(std::move(bias)),
        matrix_(kernels::packed_matrix_bytes(out_features, in_features, dtype)),
        params_{.width = in_features,
                .columns = out_features,
                .dtype = dtype,
                .matrix = matrix_.data(),
                .bias = bias_ ? bias_->data() : nullptr} {
    kernels::pack_matrix(weight.data(), out_features, in_features, dtype, matrix_.data(), threads);
  }

  void apply(const void* input, int64_t rows, void* out, int threads) const override {
    kernels::ProductParams params = params_;
    params.rows = rows;
    params.input = input;
    params.out = out;
    kernels::multiply(params, threads);
  }

 private:
  std::shared_ptr<const Buffer> bias_;
  Buffer matrix_;
  kernels::ProductParams params_;
};

Linear::Linear(std::shared_ptr<const Buffer> weight, std::shared_ptr<const Buffer> bias, int64_t out_features,
               int64_t in_features, kernels::DType dtype, int parts, std::optional<Products> products)
    : out_features_(out_features), in_features_(in_features) {
  if (products.value_or(products_for(dtype)) == Products::kOwn) {
    product_ =
        std::make_unique<OwnProduct>(*weight, std::move(bias), out_features, in_features, dtype, parts);
  } else {
    product_ = std::make_unique<LibraryProduct>(std::move(weight), std::move(bias), out_features, in_features,
                                                dtype, parts);
  }
}

Linear::~Linear() = default;
Linear::Linear(Linear&&) noexcept = default;
Linear& Linear::operator=(Linear&&) noexcept = default;

void Linear::apply(const void* input, int64_t rows, void* out, int threads) const {
  if (rows > 0) product_->apply(input, rows, out, threads);
}

}  // namespace allot::model
