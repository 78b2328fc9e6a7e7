// Matrix products of the CPU runtime. With AVX-512, and on other architectures, LibTorch computes them by
// oneDNN or MKL, behind an interface without its headers: linear.cc is the only file of the CPU runtime that
// compiles against ATen (model/cuda/dense_prefill.cc does on a GPU). On x86 processors without AVX-512, and
// in bfloat16 on those with AMX, kernels/product.h computes them: there LibTorch's sums depend on how many
// rows there are, and it is slower (docs/internals/engine-cpu.md, "Processors with AMX").
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "kernels/estimator.h"
#include "model/buffer.h"

namespace allot::model {

// Who computes products. Both sum in float32 and round once; they sum in different orders.
enum class Products { kLibrary, kOwn };

// Those of this processor.
Products products_for(kernels::DType dtype);

// LibTorch's products run on whole groups of this many rows. For one row or a few the libraries use other
// code, which sums in another order: padding makes a sequence's bits independent of the number of its batch
// mates.
inline constexpr int64_t kRowGroup = 16;

// A thread that computes a whole block of rows reads every weight. When a matrix is larger than this, the
// threads share each product instead.
inline constexpr int64_t kMaxPrivateMatrixBytes = int64_t{8} << 20;

// out = input * weight^T + bias. The weight is shared because a tied embedding is also the table of
// the first layer.
class Linear {
 public:
  // weight [out_features, in_features] and bias [out_features], or null for none, both of `dtype`. Where
  // oneDNN can, and for products of our own, the weight is copied into the order in which it is read, and
  // `weight` is not kept; oneDNN's is cut into columns for that many threads, at most `parts`, which change
  // no bit.
  Linear(std::shared_ptr<const Buffer> weight, std::shared_ptr<const Buffer> bias, int64_t out_features,
         int64_t in_features, kernels::DType dtype, int parts,
         std::optional<Products> products = std::nullopt);  // not set: products_for(dtype)
  ~Linear();
  Linear(Linear&&) noexcept;
  Linear& operator=(Linear&&) noexcept;

  int64_t out_features() const { return out_features_; }
  int64_t in_features() const { return in_features_; }

  // input [rows, in_features] and out [rows, out_features] of `dtype`, contiguous, whose memory goes on to a
  // whole kRowGroup of rows: LibTorch's products read and write it. Sums are float32, rounded once when
  // stored. Up to `threads` threads share the columns of out, with LibTorch at most as many as
  // there are parts; inside run_parallel it must be 1.
  void apply(const void* input, int64_t rows, void* out, int threads) const;

 private:
  class Product;
  class LibraryProduct;
  class OwnProduct;

  std::unique_ptr<const Product> product_;
  int64_t out_features_;
  int64_t in_features_;
};

}  // namespace allot::model
